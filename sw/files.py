"""Files that appear whole or not at all."""

import os
import pathlib
import tempfile


def write_whole(path: pathlib.Path, content: bytes) -> None:
    """Write a file through a temporary one beside it, which is gone afterwards whatever happens. ``OSError`` if not."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
