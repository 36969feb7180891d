"""What this process and its workers say to each other: named arrays, never code.

A message is its length, 8 bytes little-endian, and an ``.npz`` file. A text is an array of its bytes in UTF-8.
"""

import io
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np

from sw.reader.model import Array

Message = dict[str, Array]


def send(stream: IO[bytes], content: Mapping[str, Any]) -> None:
    """Write a message."""
    arrays = {
        name: np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.asarray(value)
        for name, value in content.items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    raw = buffer.getvalue()
    stream.write(len(raw).to_bytes(8, "little") + raw)
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Read a message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    raw = stream.read(size)
    if len(raw) < size:
        return None
    with np.load(io.BytesIO(raw), allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def text(array: Array) -> str:
    """A text of a message."""
    return array.tobytes().decode("utf-8", "replace")


def serve(source: IO[bytes], sink: IO[bytes], answer: Callable[[Message], Mapping[str, Any]]) -> None:
    """Answer messages until the other side closes; what ``answer`` raises becomes an entry ``error``."""
    while (request := receive(source)) is not None:
        try:
            content = answer(request)
        except Exception as error:  # whatever a runtime raises on a file that is not trusted
            content = {"error": str(error) or type(error).__name__}
        send(sink, content)
