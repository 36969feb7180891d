"""Windows of ONNX's convolutions and pools: kernel, stride, dilation, padding."""

from collections.abc import Sequence

from sw.operators import Padding, Pair, Tensor, window_output
from sw.reader.onnx_file import OnnxNode
from sw.reader.support import LARGEST_SIDE, LARGEST_WINDOW, Unsupported


def ints(node: OnnxNode, name: str, default: Sequence[int]) -> list[int]:
    """An attribute that is a list of integers."""
    return [int(value) for value in node.attributes.get(name, default)]


def window(
    node: OnnxNode, source: Tensor, output: Tensor, kernel: Pair, *, ceils: bool = False
) -> tuple[Pair, Pair, Padding]:
    """Stride, dilation and padding. With ``ceils``, rows and columns that ``ceil_mode`` adds are padding at the end."""
    stride, dilation = ints(node, "strides", (1, 1)), ints(node, "dilations", (1, 1))
    pads = ints(node, "pads", (0, 0, 0, 0))
    if len(stride) != 2 or len(dilation) != 2 or len(pads) != 4:
        raise Unsupported("its window has other than two dimensions")
    for what, pair in (("kernel", kernel), ("stride", stride), ("dilation", dilation)):
        if min(pair) < 1 or max(pair) > LARGEST_WINDOW:
            raise Unsupported(f"its {what} is {pair[0]}x{pair[1]}; it can be 1 to {LARGEST_WINDOW}")
    before, after = pads[:2], pads[2:]
    automatic = node.attributes.get("auto_pad", b"NOTSET")
    for side in range(2):
        size, k, s, d = source.shape[side], kernel[side], stride[side], dilation[side]
        if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
            needed = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            before[side] = needed // 2 if automatic == b"SAME_UPPER" else needed - needed // 2
            after[side] = needed - before[side]
        elif automatic == b"VALID":
            before[side] = after[side] = 0
        made = window_output(size, k, s, d, before[side], after[side])
        if made == output.shape[side] - 1 and ceils:
            after[side] += made * s + (k - 1) * d + 1 - size - before[side] - after[side]
            made += 1
        if made != output.shape[side] or made < 1:
            raise Unsupported(f"its window makes {made} along axis {side + 2}, its output has {output.shape[side]}")
    if min(*before, *after) < 0 or max(*before, *after) > LARGEST_SIDE:
        raise Unsupported(f"it pads {pads}")
    return (stride[0], stride[1]), (dilation[0], dilation[1]), Padding(before[0], after[0], before[1], after[1])


def kernel_of(node: OnnxNode) -> Pair:
    """Kernel of a pool. Raises ``Unsupported``."""
    sizes = ints(node, "kernel_shape", ())
    if len(sizes) != 2:
        raise Unsupported("its window has other than two dimensions")
    return sizes[0], sizes[1]
