"""Tensors and operators of the quantised graph; `sw.graph` says what they mean and names them all again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int, int]
Pair = tuple[int, int]

Quantisation = tuple[float, int]
"""Scale and zero point of a tensor."""

ACTIVATIONS = ("silu", "sigmoid", "relu", "relu6", "hard_swish", "tanh", "table")
"""Kinds of activation that a graph may name; `table` is any function that a model composes of several operators."""

NO_CLAMP: Pair = (-128, 127)
"""Bounds of an operator without a fused activation."""

MAX_AVERAGE = 2895
"""Most pixels of an average-pooling window: up to so many, one multiplication divides and rounds exactly."""


class GraphError(ValueError):
    """A graph that is not valid.  The message is one line and echoes the value that is wrong."""


@dataclass(frozen=True)
class Tensor:
    """An int8 tensor; a value `q` stands for the real number ``scale * (q - zero_point)``.

    `scale` is rounded to float32 at construction, because that is what a model file holds.
    """

    name: str
    shape: Shape
    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        if not self.name:
            raise GraphError("a tensor needs a name")
        if len(self.shape) != 3 or any(n < 1 for n in self.shape):
            raise GraphError(f"tensor {self.name}: the shape must be three positive sizes, not {self.shape!r}")
        scale = float(np.float32(self.scale))
        if not 0.0 < scale < float("inf"):
            raise GraphError(f"tensor {self.name}: the scale must be positive and finite, not {self.scale!r}")
        if not -128 <= self.zero_point <= 127:
            raise GraphError(f"tensor {self.name}: the zero point must be in -128..127, not {self.zero_point!r}")
        object.__setattr__(self, "scale", scale)

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def width(self) -> int:
        """Number of pixels in a row."""
        return self.shape[1]

    @property
    def channels(self) -> int:
        """Number of channels of a pixel."""
        return self.shape[2]

    @property
    def size(self) -> int:
        """Number of elements, which is the number of bytes too."""
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def quantisation(self) -> tuple[float, int]:
        """Scale and zero point, to compare tensors by."""
        return self.scale, self.zero_point


@dataclass(frozen=True)
class Padding:
    """Rows and columns that a window sees beyond each edge of its input."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        if min(self.top, self.bottom, self.left, self.right) < 0:
            raise GraphError(f"padding must not be negative: {self!r}")

    @classmethod
    def all(cls, n: int) -> "Padding":
        """Return the same padding on every edge."""
        return cls(n, n, n, n)


@dataclass(frozen=True, eq=False)
class Requantisation:
    """Factors from accumulator to output: int32 ``[cout]`` multipliers and shifts, positive to the left."""

    multiplier: NDArray[np.int32]
    shift: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Convolution:
    """Convolution with bias, dense, grouped or depthwise; padding has the input's zero point.

    A fully connected layer is one whose kernel is as large as its input.

    Parameters
    ----------
    name, inputs, output
        Name of the operator, its one input tensor, its output tensor.
    weights
        int8 ``[cout, kh, kw, cin / groups]``.
    weight_scales
        float32 ``[cout]``.
    bias
        int32 ``[cout]``, in units of input scale times weight scale.
    stride, dilation
        Vertical and horizontal.
    padding
        Anything, symmetric or not.
    groups
        Output channels ``[g * cout / groups, (g + 1) * cout / groups)`` read input channels ``[g * cin / groups,
        (g + 1) * cin / groups)``; as many as input channels make a depthwise convolution.
    clamp
        Least and greatest output value: a fused activation.
    requantisation
        Where the factors do not follow from the scales as those of TFLite's CONV_2D do.
    single_rounding
        Requantisation rounds once, halves up, and not twice: nearer to the real number, and what TFLite's
        FULLY_CONNECTED, which computes in double precision, can be made exact with.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    weights: NDArray[np.int8]
    weight_scales: NDArray[np.float32]
    bias: NDArray[np.int32]
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Padding = Padding()
    groups: int = 1
    clamp: Pair = NO_CLAMP
    requantisation: Requantisation | None = None
    single_rounding: bool = False

    @property
    def kernel(self) -> Pair:
        """Kernel height and width."""
        return self.weights.shape[1], self.weights.shape[2]


@dataclass(frozen=True, eq=False)
class Activation:
    """Element-wise function, ``output = table[input + 128]``.

    Parameters
    ----------
    kind
        One of `ACTIVATIONS`: says where the table comes from.
    table
        int8 ``[256]``.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    kind: str
    table: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Addition:
    """Sum of two tensors of one shape, clamped; all three quantisations may differ."""

    name: str
    inputs: tuple[str, ...]
    output: str
    clamp: Pair = NO_CLAMP


@dataclass(frozen=True, eq=False)
class MaxPool:
    """Maximum over a window, clamped; padding never wins."""

    name: str
    inputs: tuple[str, ...]
    output: str
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Padding = Padding()
    clamp: Pair = NO_CLAMP


@dataclass(frozen=True, eq=False)
class AveragePool:
    """Mean over the pixels of a window that are not padding, halves rounded away from zero, clamped."""

    name: str
    inputs: tuple[str, ...]
    output: str
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Padding = Padding()
    clamp: Pair = NO_CLAMP


@dataclass(frozen=True, eq=False)
class Concatenation:
    """Inputs side by side along the channels, all with the output's quantisation."""

    name: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, eq=False)
class Upsample:
    """Every pixel repeated `factor` times in both directions (nearest neighbour)."""

    name: str
    inputs: tuple[str, ...]
    output: str
    factor: int = 2


Operator = Convolution | Activation | Addition | MaxPool | AveragePool | Concatenation | Upsample


def window_output(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Number of positions of a window along one dimension; 0 or less when the padded input is too small."""
    return (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
