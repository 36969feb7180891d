"""Options and behaviour that all verbs share: one clear line and exit code 2 for bad input, 130 for Ctrl-C."""

import functools
import pathlib
import sys
import threading
import typing

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hw.spec.config import ConfigError, NpuConfig, load_config
from sim.engines import EngineError, open_device
from sim.workload import WorkloadError
from sw.check import CheckError
from sw.driver import DriverError, JobError
from sw.heap import HeapError
from sw.policy import BufferPolicy, policy
from sw.program import Program, ProgramError
from sw.tiling import PlanError

BAD_INPUT = (ConfigError, EngineError, WorkloadError, PlanError, ProgramError, CheckError, DriverError, HeapError)

# Names come from users, so nothing in them is markup; what is not a terminal has no width to keep to.
console = Console(markup=False, width=None if sys.stdout.isatty() else 120)
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

    return wrapper


def fail(message: str, code: int = 2) -> typing.NoReturn:
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
    """``--model``, ``--size``, ``--npu``, ``--set``."""

    def decorate(command: typing.Callable[..., typing.Any]) -> typing.Any:
        for option in reversed(
            (
                click.option("--model", default="yolov5s", show_default=True, help="yolov5n, s, m, l or x."),
                click.option("--size", default=default_size, show_default=True, metavar="HxW", help="Input size."),
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
            command = option(command)
        return command

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


def check_memory(program: Program, config: NpuConfig) -> None:
    """Refuse a network that does not fit the memory, before anything is built."""
    need = sum(program.buffer_bytes.values()) + sum(len(stream) for stream in program.streams.values())
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
            disable=quiet,
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
