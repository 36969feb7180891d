"""What a reader of model files has to do with any file at all, checked in processes that may crash or hang.

Either `read_model` raises ``ModelError`` with one short line, or the model that it returns computes what the runtime
computes from that same file, byte for byte, and compiles to programs that do the same, or is refused by the compiler
with one short line too.  A file that the runtime refuses, or cannot execute, is never accepted.  Nothing is written to
the terminal.
"""

import contextlib
import math
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from hw.spec.config import NpuConfig
from sim.testing.tflite_files import Array
from sw.compiler import Compiled
from sw.graph import Graph

MESSAGE_LIMIT = 400
"""Most characters of a message."""

READ_SECONDS = 120.0
"""Wall time in which a file is read or refused, processes that the reader starts included."""

RUN_SECONDS = 120.0
"""Wall time for one execution."""

COMPILE_SECONDS = 240.0
"""Wall time in which the programs are compiled and checked, or refused."""

MEMORY_BYTES = 6 << 30
"""Address space of a process that reads or runs a file."""

ELEMENT_LIMIT = 10_000_000
"""Elements of all tensors beyond which a model is not executed."""

COMPILE_LIMIT = 1_000_000
"""Elements of all tensors beyond which a model is not compiled."""

COMMAND_LIMIT = 3000
"""Commands beyond which a program is checked but not carried out."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["sim.golden", "sim.functional", "sim.verify", "sw.compiler", "sw.reader.model", "ai_edge_litert.interpreter"]
)

_Report = tuple[str, Any]
_GraphRun = tuple[Graph, dict[str, Array], dict[str, Array]]
"""A graph, its inputs and every tensor of it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    `kind` is one of

    * ``refused``: by ``ModelError``, when the file was read or when the host ran its part of it;
    * ``equal``: the model computes what the runtime computes;
    * ``unchecked``: a model, but too large to be run here, or the runtime takes too long or fails on some inputs only;
    * ``fault``: the property is violated.
    """

    kind: str
    text: str


def check(
    data: bytes, seed: int = 0, *, suffix: str = ".tflite", host_fallback: bool = True, programs: bool = True
) -> Outcome:
    """Read and run a file and, with `programs`, compile it.

    Inputs, configuration and buffer policy are random and follow from `seed`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        path.write_bytes(data)
        reports = _apart(
            _read_and_run, (path, seed, host_fallback, programs), (READ_SECONDS, RUN_SECONDS, COMPILE_SECONDS)
        )
    kind, value = reports[0]
    if kind == "refused":
        return _judge_message(str(value))
    if kind != "read":
        return Outcome("fault", f"read_model: {value}")
    (kind, ours), *rest = reports[1:]
    answer, theirs = _ask_runtime(data, value)
    match kind, answer:
        case _, "refuses" | "inputs":
            return Outcome("fault", f"accepted, but the runtime {answer}: {theirs}")
        case "large", _:
            return Outcome("unchecked", str(ours))
        case "refused", "fails" | "fails on some inputs" | "takes too long":
            return _judge_message(str(ours))
        case "refused", _:
            return Outcome("fault", f"accepted, but refused when it runs: {ours}")
        case "ran", "fails":
            return Outcome("fault", f"accepted, but the runtime fails: {theirs}")
        case "ran", "fails on some inputs" | "takes too long":
            return Outcome("unchecked", f"the runtime {answer}: {theirs}")
        case "ran", _:
            outcome = _compare(ours, theirs)
            return _judge_programs(*rest[0]) or outcome if outcome.kind == "equal" else outcome
    return Outcome("fault", f"evaluate: {ours}")


def _judge_programs(kind: str, value: Any) -> Outcome | None:
    """The fault in what the compiler said, if there is one."""
    if kind == "compiled":
        return None
    outcome = _judge_message(str(value)) if kind == "no plan" else Outcome("fault", f"compiled: {value}")
    return outcome if outcome.kind == "fault" else None


def _ask_runtime(data: bytes, inputs: list[Array] | None) -> _Report:
    """What the runtime makes of a file, and why or with which results.

    The first is one of ``refuses``, ``inputs`` (it wants others), ``takes`` (the file, not executed as there are no
    inputs), ``ran``, ``fails``, ``fails on some inputs`` and ``takes too long``.
    """
    (kind, value), *rest = _apart(_run_runtime, (data, inputs), (RUN_SECONDS, RUN_SECONDS))
    if kind != "ready":
        return ("takes too long" if kind == "timeout" else "refuses"), value
    if inputs is None:
        return "takes", None
    kind, value = rest[0]
    if kind in ("ran", "inputs"):
        return kind, value
    if kind == "timeout":
        return "takes too long", value
    if any(array.any() for array in inputs) and _ask_runtime(data, [np.zeros_like(x) for x in inputs])[0] == "ran":
        return "fails on some inputs", value
    return "fails", value


def _judge_message(text: str) -> Outcome:
    if len(text) > MESSAGE_LIMIT:
        return Outcome("fault", f"a message of {len(text)} characters: {text[:MESSAGE_LIMIT]!r}")
    if not text.isprintable():
        return Outcome("fault", f"a message that is not one printable line: {text!r}")
    if len(text.strip()) < 10:
        return Outcome("fault", f"a message that says nothing: {text!r}")
    return Outcome("refused", text)


def _compare(ours: list[tuple[str, Array]], theirs: list[tuple[str, Array]]) -> Outcome:
    if len(ours) != len(theirs):
        return Outcome("fault", f"{len(ours)} outputs, not {len(theirs)}")
    for (name, x), (_, y) in zip(ours, theirs, strict=True):
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return Outcome("fault", f"output {name!r} is {x.dtype} {x.shape}, not {y.dtype} {y.shape}")
        if x.tobytes() != y.tobytes():
            wrong = np.flatnonzero(np.ravel(x != y))
            place = int(wrong[0]) if wrong.size else 0
            values = f"{x.ravel()[place]} at {place}, not {y.ravel()[place]}" if x.size else ""
            return Outcome("fault", f"output {name!r}: {wrong.size} of {x.size} differ; {values}")
    return Outcome("equal", f"{sum(x.size for _, x in ours)} values")


def _apart(target: Callable[..., None], arguments: tuple[Any, ...], limits: tuple[float, ...]) -> list[_Report]:
    """Reports of a process: one for each time limit, fewer if the last one is its end.

    A process that dies or takes too long ends with a report of kind ``crash`` or ``timeout``.
    """
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_guarded, args=(sender, target, *arguments), daemon=False)
    process.start()
    sender.close()
    reports: list[_Report] = []
    try:
        for limit in limits:
            if not receiver.poll(limit):
                reports.append(("timeout", f"no answer in {limit:.0f} s"))
                break
            try:
                kind, value = receiver.recv()
            except EOFError:
                process.join(10)
                reports.append(("crash", f"the process ended with code {process.exitcode}"))
                break
            reports.append((kind, value))
            if kind in ("refused", "large", "error"):
                break
    finally:
        receiver.close()
        assert process.pid  # the child leads a group, with the processes that it starts
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.join()
    return reports


def _guarded(connection: Connection, target: Callable[..., None], *arguments: Any) -> None:
    os.setsid()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryFile(mode="a+b") as terminal:
        for descriptor in (1, 2):
            os.dup2(terminal.fileno(), descriptor)
        try:
            target(_Reporter(connection, terminal if target is _read_and_run else None), *arguments)
        except BaseException as error:
            with contextlib.suppress(OSError):
                connection.send(("error", f"{type(error).__name__} at {_place(error)}: {str(error)[:400]}"))


class _Reporter:
    """Sends reports; one that comes when something was written to the terminal becomes an error."""

    def __init__(self, connection: Connection, terminal: Any) -> None:
        self._connection = connection
        self._terminal = terminal

    def __call__(self, kind: str, value: Any = None) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        if self._terminal is not None and os.fstat(self._terminal.fileno()).st_size:
            self._terminal.seek(0)
            kind, value = "error", f"written to the terminal: {self._terminal.read(400)!r}"
        self._connection.send((kind, value))


def _place(error: BaseException) -> str:
    """Where an error was raised: file and line, of the project's code where there is some."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "<" not in frame.filename]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _read_and_run(send: Callable[..., None], path: Path, seed: int, host_fallback: bool, programs: bool) -> None:
    from sim import golden
    from sw.reader.model import ModelError, evaluate, read_model

    try:
        model = read_model(path, host_fallback=host_fallback)
    except ModelError as error:
        send("refused", str(error).replace(str(path.parent), "."))
        return
    sizes = [math.prod(port.shape) for port in (*model.inputs, *model.outputs)]
    sizes += [math.prod(tensor.shape) for graph in model.graphs for tensor in graph.tensors.values()]
    if sum(sizes) > ELEMENT_LIMIT:
        send("read", None)
        send("large", "the model is too large to be run here")
        return
    rng = np.random.default_rng(seed)
    arrays = [_array(port.shape, port.dtype, rng) for port in model.inputs]
    send("read", arrays)
    named = {port.name: array for port, array in zip(model.inputs, arrays, strict=True)}
    runs: list[_GraphRun] = []

    def run(graph: Graph, tensors: dict[str, Array]) -> dict[str, Array]:
        values = golden.run(graph, tensors)
        runs.append((graph, tensors, values))
        return values

    try:
        results = evaluate(model, named, run)
    except ModelError as error:
        send("refused", str(error))
        return
    send("ran", [(port.name, np.asarray(results[port.name])) for port in model.outputs])
    if programs and sum(sizes) <= COMPILE_LIMIT:
        _compile(send, runs, rng)
    else:
        send("compiled", 0)


def _compile(send: Callable[..., None], runs: list[_GraphRun], rng: np.random.Generator) -> None:
    """Compile the graphs, check the programs and carry out the short ones."""
    from hw.spec.commands import Engine
    from hw.spec.config import load_config
    from sw.check import check_program
    from sw.compiler import compile_graph
    from sw.operators import GraphError
    from sw.policy import POLICIES
    from sw.tiling import PlanError

    config = load_config(str(rng.choice(("tiny", "ecp5", "edge", "edge"))))
    policy = POLICIES[str(rng.choice(sorted(POLICIES)))]
    for graph, inputs, values in runs:
        try:
            compiled = compile_graph(graph, config, policy)
        except (GraphError, PlanError) as error:
            send("no plan", str(error))
            return
        check_program(compiled.program, config)
        if sum(map(compiled.program.commands, Engine)) <= COMMAND_LIMIT:
            difference = _carried_out(compiled, config, inputs, values)
            if difference:
                send("error", f"the program under {policy.name} on {config.name}: {difference}")
                return
    send("compiled", len(runs))


def _carried_out(compiled: Compiled, config: NpuConfig, inputs: dict[str, Array], values: dict[str, Array]) -> str:
    """Where a program's outputs are not `values`; nothing if they are."""
    from sim.functional import Functional
    from sim.verify import check_tensors
    from sw.layout import TensorLayout

    program = compiled.program
    names = ("constants", "arena", "input", "output")
    memory = {base: np.zeros(program.buffer_bytes[name], np.uint8) for base, name in enumerate(names)}
    memory[0][:] = np.frombuffer(program.constants, np.uint8)
    for name, tensor in inputs.items():
        stored = program.tensors[name]
        raw = TensorLayout(*stored.shape, program.n, stored.packed).pack(tensor)
        memory[stored.base][stored.offset : stored.offset + len(raw)] = np.frombuffer(raw, np.uint8)
    Functional(config, memory).run(program)

    def read(base: int, offset: int, size: int) -> bytes:
        return memory[base][offset : offset + size].tobytes()

    differences = [str(found) for _, found in check_tensors(compiled, values, read) if found is not None]
    return differences[0] if differences else ""


def _run_runtime(send: Callable[..., None], data: bytes, inputs: list[Array] | None) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    send("ready")
    if inputs is None:
        return
    details = interpreter.get_input_details()
    wanted = [(np.dtype(detail["dtype"]).name, tuple(detail["shape"].tolist())) for detail in details]
    given = [(array.dtype.name, array.shape) for array in inputs]
    if wanted != given:
        send("inputs", f"{wanted}, not {given}")
        return
    for detail, array in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    outputs = {detail["index"]: detail["name"] for detail in interpreter.get_output_details()}  # each but once
    send("ran", [(name, interpreter.get_tensor(index)) for index, name in outputs.items()])


def _array(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return (rng.normal(0, 1, shape) * 10.0 ** rng.integers(-2, 3)).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(kind)
    limits = np.iinfo(kind)
    if kind.itemsize > 2:  # sizes and indices rather than quantised values
        return rng.integers(0, 8, shape).astype(kind)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)
