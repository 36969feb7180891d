"""What each kind of operator makes of the array: single layers, measured alone, for ``docs/performance.md``."""

import dataclasses

import numpy as np

from hw.spec.config import NpuConfig
from hw.spec.numerics import Int8Array, silu_table
from sim import golden as golden_model
from sim.session import Measurement, measure
from sw.check import check_program
from sw.compiler import compile_graph
from sw.graph import Activation, Addition, AveragePool, Convolution, Graph, MaxPool, Operator, Padding, Tensor
from sw.policy import policy

_SCALE = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class OperatorCase:
    """A layer by itself: its input is loaded from DRAM and its output stored there."""

    title: str
    graph: Graph


def _layer(title: str, operator: Operator, source: tuple[int, int, int], result: tuple[int, int, int]) -> OperatorCase:
    tensors = {
        name: Tensor(name, source if name in operator.inputs else result, _SCALE, 0)
        for name in (*operator.inputs, operator.output)
    }
    return OperatorCase(title, Graph(title, operator.inputs, (operator.output,), tensors, (operator,)))


def _convolution(title: str, size: int, cin: int, cout: int, kernel: int, groups: int = 1) -> OperatorCase:
    generator = np.random.default_rng(0)
    weights = generator.integers(-127, 127, (cout, kernel, kernel, cin // groups), np.int8, endpoint=True)
    scales = np.full(cout, 1 / (kernel * 64 * (cin // groups) ** 0.5), np.float32)
    operator = Convolution(
        "layer",
        ("x",),
        "y",
        weights,
        scales,
        np.zeros(cout, np.int32),
        padding=Padding.all(kernel // 2),
        groups=groups,
    )
    return _layer(title, operator, (size, size, cin), (size, size, cout))


def cases() -> list[OperatorCase]:
    """Layers of one size, 56 x 56 x 128, but for the fully connected one."""
    size, channels = 56, 128
    shape = (size, size, channels)
    half = (size // 2, size // 2, channels)
    table = silu_table(_SCALE, 0, _SCALE, 0)
    return [
        _convolution("convolution 3x3", size, channels, channels, 3),
        _convolution("convolution 1x1", size, channels, channels, 1),
        _convolution("grouped convolution 3x3, 4 groups", size, channels, channels, 3, 4),
        _convolution("grouped convolution 3x3, 32 groups", size, channels, channels, 3, 32),
        _convolution("depthwise convolution 3x3", size, channels, channels, 3, channels),
        _convolution("depthwise convolution 5x5", size, channels, channels, 5, channels),
        _convolution("fully connected, 2,048 to 1,024", 1, 2048, 1024, 1),
        _layer("average pool 2x2 by 2", AveragePool("layer", ("x",), "y", (2, 2), (2, 2)), shape, half),
        _layer("average pool of all", AveragePool("layer", ("x",), "y", (28, 28)), half, (1, 1, channels)),
        _layer("max pool 2x2 by 2", MaxPool("layer", ("x",), "y", (2, 2), (2, 2)), shape, half),
        _layer("max pool 3x3", MaxPool("layer", ("x",), "y", (3, 3), padding=Padding.all(1)), shape, shape),
        _layer("addition", Addition("layer", ("x", "x2"), "y"), shape, shape),
        _layer("activation by table", Activation("layer", ("x",), "y", "silu", table), shape, shape),
    ]


def measure_case(
    case: OperatorCase, config: NpuConfig, *, buffers: str = "pingpong", engine: str = "rtl"
) -> Measurement:
    """Run one layer on the RTL and compare it with the golden model. ``AssertionError`` if they differ."""
    generator = np.random.default_rng(1)
    inputs: dict[str, Int8Array] = {
        name: generator.integers(-128, 127, case.graph.tensors[name].shape, np.int8, endpoint=True)
        for name in case.graph.inputs
    }
    compiled = compile_graph(case.graph, config, policy(buffers))
    check_program(compiled.program, config)
    golden = golden_model.run(case.graph, inputs)
    measurement, checked = measure(compiled, config, inputs, title=case.title, engine=engine, golden=golden)
    assert checked is not None and checked.difference is None, f"{case.title}: {checked and checked.difference}"
    return measurement


def section(config: NpuConfig) -> list[str]:
    """The chapter on operators, as lines of Markdown."""
    out = [
        f"## Operators by themselves on `{config.name}`, buffers `pingpong`",
        "",
        "One layer a run, 56 x 56 x 128 where nothing else is said, from DRAM to DRAM; the first load and the last",
        f"store are not hidden. The array makes {config.array.n**2:,} products a cycle. **Depthwise layers are what it "
        "does badly**: they have use",
        f"for the {config.array.n} products on its diagonal only, which bounds their utilisation at "
        f"1/{config.array.n} = {1 / config.array.n:.1%}.",
        "Grouped ones lie between. A fully connected layer uses each weight once, so the bus decides. Pools, additions",
        "and tables have no products that count as useful; outputs a cycle compare with the line of N values that the",
        "epilogue can write.",
        "",
        "| operator | MACs | cycles | MACs a cycle | array utilisation | outputs a cycle |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases():
        m = measure_case(case, config)
        values = sum(case.graph.tensors[name].size for name in case.graph.outputs)
        macs = f"{m.macs / m.cycles:.1f} | {m.array_utilisation:.1%}" if m.macs else "|"
        out.append(f"| {case.title} | {m.macs:,} | {m.cycles:,} | {macs} | {values / m.cycles:.1f} |")
    return out
