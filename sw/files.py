"""Files that appear whole or not at all."""

import os
import pathlib
import tempfile


def is_no_file(path: pathlib.Path) -> bool:
    """Whether something is there that is no file: a pipe would be waited for, a device has no end.

    Names that the system does not take are for whoever opens them to report.
    """
    try:
        return path.exists() and not path.is_file()
    except OSError:
        return False


def check_writable(path: pathlib.Path) -> None:
    """See that a file can be written there, and leave nothing behind. Raises ``OSError`` if not."""
    if path.is_dir():
        raise IsADirectoryError(21, "it is a folder", str(path))
    if is_no_file(path):
        raise FileExistsError(17, "it is no file", str(path))  # a device, say, which would be replaced
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(descriptor)
    pathlib.Path(name).unlink()


def write_whole(path: pathlib.Path, content: bytes) -> None:
    """Write a file through a temporary one beside it, which is gone afterwards whatever happens. ``OSError`` if not.

    A link is followed.
    """
    path = path.resolve()
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
