"""Options and behaviour that all verbs share: one clear line and exit code 2 for bad input, 130 for Ctrl-C."""

import functools
import itertools
import os
import pathlib
import sys
import threading
import typing
from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hw.spec.config import ConfigError, NpuConfig, load_config
from sim.engines import EngineError, open_device
from sim.inputs import InputError
from sim.pictures import PictureError
from sim.pipeline import CompiledModel
from sim.workload import ModelError, WorkloadError, find_workload
from sw.check import CheckError
from sw.driver import DriverError, JobError
from sw.files import check_writable
from sw.heap import HeapError
from sw.policy import BufferPolicy, policy
from sw.program import ProgramError
from sw.tiling import PlanError

BAD_INPUT = (
    ConfigError,
    EngineError,
    WorkloadError,
    ModelError,
    PictureError,
    InputError,
    PlanError,
    ProgramError,
    CheckError,
    DriverError,
    HeapError,
)

# Names come from users, so nothing in them is markup; what is not a terminal has no width to keep to.
console = Console(markup=False, width=None if sys.stdout.isatty() else 160)
errors = Console(markup=False, stderr=True)


class Cancelled(BaseException):
    """Raised in a worker when the user has pressed Ctrl-C."""


def guarded(command: typing.Callable[..., typing.Any]) -> typing.Callable[..., typing.Any]:
    """Turn the errors of bad input into one line and exit code 2, a failed job into exit code 1."""

    @functools.wraps(command)
    def wrapper(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        try:
            return command(*args, **kwargs)
        except BAD_INPUT as error:
            fail(str(error))
        except JobError as error:
            fail(str(error), code=1)
        except BrokenPipeError:
            sys.exit(1)
        except OSError as error:
            # A full disk, most likely, behind the standard output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            fail(f"cannot write: {error.strerror}")

    return wrapper


def fail(message: str, code: int = 2) -> typing.NoReturn:
    """End with one line, whatever names are in it."""
    message = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    errors.print(f"rondo: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"wants KEY=VALUE, not {text!r}")
        settings[key] = value
    return settings


def model_options(default_size: str) -> typing.Callable[[typing.Callable[..., typing.Any]], typing.Any]:
    """``--model``, ``--size`` and ``--host-fallback``, given to the command as ``workload``; ``--npu``, ``--set``.

    The command is ``guarded``.
    """

    def decorate(command: typing.Callable[..., typing.Any]) -> typing.Any:
        @guarded
        @functools.wraps(command)
        def wrapper(*, model: str, size: str | None, host_fallback: bool, **others: typing.Any) -> typing.Any:
            workload = find_workload(model, size, default_size=default_size, host_fallback=host_fallback)
            return command(workload=workload, **others)

        decorated: typing.Any = wrapper
        for option in reversed(
            (
                click.option(
                    "--model",
                    default="yolov5s",
                    show_default=True,
                    metavar="NAME|FILE",
                    help="yolov5n, s, m, l or x; or a quantised .tflite or .onnx file.",
                ),
                click.option("--size", metavar="HxW", help=f"Input size of yolov5; {default_size} unless given."),
                click.option(
                    "--host-fallback",
                    is_flag=True,
                    help="Run operators that the NPU lacks on the host, between programs.",
                ),
                click.option(
                    "--npu", default="edge", show_default=True, metavar="PRESET|FILE.toml", help="Configuration."
                ),
                click.option(
                    "--set",
                    "settings",
                    multiple=True,
                    metavar="KEY=VALUE",
                    callback=_settings,
                    help="Override one key of the configuration; may be repeated.",
                ),
            )
        ):
            decorated = option(decorated)
        return decorated

    return decorate


def configuration(npu: str, settings: dict[str, str]) -> NpuConfig:
    return load_config(npu, settings)


def policies(text: str) -> list[BufferPolicy]:
    """The policies of a comma-separated list, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        fail("--buffers wants at least one policy")
    try:
        return [policy(name) for name in names]
    except ValueError as error:
        fail(str(error))


def one_policy(verb: str, text: str) -> BufferPolicy:
    """The policy of a verb that takes a single one."""
    chosen = policies(text)
    if len(chosen) != 1:
        fail(f"rondo {verb} takes one buffer policy; rondo compare takes several")
    return chosen[0]


def output_folder(path: pathlib.Path | None) -> pathlib.Path | None:
    """Make the folder and see that it can be written, before anything long starts."""
    if path is None:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / "results.json").is_dir():
            fail(f"cannot write to {path}: results.json is a folder")
        probe = path / ".rondo-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        fail(f"cannot write to {path}: {error.strerror}")
    return path


def check_apart(sources: Sequence[pathlib.Path | None], targets: Sequence[pathlib.Path | None]) -> None:
    """Refuse to write one file twice, or over one that is read."""
    taken = {path.resolve() for path in sources if path is not None}
    for path in targets:
        if path is not None and path.resolve() in taken:
            fail(f"{path} is named twice, or is to be read and written")
        if path is not None:
            taken.add(path.resolve())


def writable(path: pathlib.Path) -> None:
    """See that a file can be written, before anything long starts."""
    try:
        check_writable(path)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def check_memory(compiled: CompiledModel, config: NpuConfig) -> None:
    """Refuse a network that does not fit the memory, before anything is built."""
    programs = [part.program for part in compiled.programs]
    images = [sum(map(len, program.streams.values())) + program.buffer_bytes["constants"] for program in programs]
    need = max(
        image + sum(size for name, size in program.buffer_bytes.items() if name != "constants")
        for image, program in zip(images, programs, strict=True)
    )
    # A program is loaded before the one before it is released.
    need = max(need, *(a + b for a, b in itertools.pairwise(images)), 0)
    # Rings of jobs and completions, and the rounding of each buffer to pages.
    need += 16 * 4096
    if need > config.dram.bytes:
        fail(f"the network needs {need:,} bytes of memory; dram.bytes is {config.dram.bytes:,}")


class Work:
    """A progress display whose workers end when the user presses Ctrl-C."""

    def __init__(self, quiet: bool = False) -> None:
        self.cancelled = threading.Event()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
            disable=quiet or not errors.is_terminal,
        )

    def __enter__(self) -> "Work":
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def say(self, message: str) -> None:
        """A line that stays."""
        errors.print(message, markup=False, highlight=False)

    def track(self, title: str, cycles: int) -> typing.Callable[[int], None]:
        """A bar over about ``cycles`` simulated cycles; call the result with the current cycle."""
        task = self.progress.add_task(title, total=cycles, note="")

        def advance(cycle: int) -> None:
            if self.cancelled.is_set():
                raise Cancelled
            self.progress.update(task, completed=min(cycle, cycles), note=f"{cycle / 1e6:.1f} M cycles")

        return advance


def prepare(engine: str, config: NpuConfig, work: Work) -> None:
    """Build the compiled simulator if it is not in the cache yet."""
    if engine == "rtl":
        open_device(engine, config, report=work.say).close()
