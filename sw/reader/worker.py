"""A process of its own for a runtime that a file may bring down, or that may never end."""

import atexit
import contextlib
import pathlib
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from sw.reader.messages import Message, receive, send, text
from sw.reader.model import ModelError

_ROOT = pathlib.Path(__file__).parent.parent.parent
_START = "import sys; sys.path.insert(0, sys.argv[1]); import importlib; importlib.import_module(sys.argv[2]).main()"
MOST_BYTES = 12 << 30
"""Of address space, lest a file of absurd shapes take the machine's memory."""


def confine() -> None:
    """Called by a worker's process: bounds its memory, and leaves no core files."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)  # where there is one already, it cannot be raised
    limit = MOST_BYTES if most == resource.RLIM_INFINITY else min(MOST_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Worker:
    """Started when it is first needed, and again after a file has brought it down. Thread-safe.

    Parameters
    ----------
    module
        Whose ``main`` the process runs: it answers messages from standard input on standard output.
    runtime
        What it runs, for messages to the user.
    """

    def __init__(self, module: str, runtime: str) -> None:
        self._module = module
        self._runtime = runtime
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, request: Mapping[str, Any], seconds: float) -> Message:
        """The answer. Raises ``ModelError`` if the runtime refuses, crashes, or takes longer than ``seconds``."""
        with self._lock:
            try:
                answer = self._exchange(request, seconds)
            except BaseException:
                self.close()
                raise
            if answer is None:
                code = self._process.wait(10) if self._process is not None else 0
                self.close()
                ending = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise ModelError(f"{self._runtime} crashes on it ({ending})")
        if "error" in answer:
            raise ModelError(f"{self._runtime} refuses it: {text(answer['error'])}")
        return answer

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # What the process did not read is still to be written.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _exchange(self, request: Mapping[str, Any], seconds: float) -> Message | None:
        process = self._process
        if process is None or process.poll() is not None:
            self.close()
            # Its own session: Ctrl-C is for us, who then end it.
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(_ROOT), self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, request)
        except BrokenPipeError:
            return None
        deadline = time.monotonic() + seconds
        while not select.select([process.stdout], [], [], 0.2)[0]:
            if time.monotonic() > deadline:
                raise ModelError(f"{self._runtime} does not come to an end within {seconds:g} seconds")
        return receive(process.stdout)
