"""The register map, compiled from ``registers.rdl``: names, offsets and fields for gateware, driver and documents.

Nothing about a register is written down anywhere else.
"""

import dataclasses
import enum
import functools
import pathlib
import tempfile
import types
import typing

if typing.TYPE_CHECKING:
    from systemrdl.node import FieldNode, RootNode

RDL_PATH = pathlib.Path(__file__).parent / "registers.rdl"
ADDRESS_BITS = 12
"""Byte address bits of the register port."""


class Access(enum.Enum):
    """What the host may do to a field, and who drives it."""

    CONSTANT = "constant"
    """Reads its reset value; writes are refused."""
    READ = "r"
    """Reads what the hardware gives; writes are refused."""
    READ_WRITE = "rw"
    """Holds what the host wrote."""
    WRITE_ONE_TO_CLEAR = "w1c"
    """Set by a pulse of the hardware, cleared by writing 1; setting wins."""
    PULSE = "singlepulse"
    """Writing 1 makes one pulse; reads 0."""

    @property
    def writable(self) -> bool:
        return self not in (Access.CONSTANT, Access.READ)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """Bits ``low`` to ``low + width - 1`` of a register."""

    name: str
    low: int
    width: int
    access: Access
    reset: int
    description: str = ""

    @property
    def mask(self) -> int:
        """The field's bits, in place."""
        return ((1 << self.width) - 1) << self.low

    def extract(self, word: int) -> int:
        """The field's value in a register's ``word``."""
        return (word & self.mask) >> self.low

    def insert(self, value: int, word: int = 0) -> int:
        """``word`` with the field replaced by ``value``. Raises ``ValueError`` if it does not fit."""
        if not 0 <= value < 1 << self.width:
            raise ValueError(f"{self.name} of {value} does not fit {self.width} bits")
        return (word & ~self.mask) | value << self.low


@dataclasses.dataclass(frozen=True, kw_only=True)
class Register:
    """A 32-bit register at byte ``offset``."""

    name: str
    offset: int
    fields: typing.Mapping[str, Field]
    description: str = ""

    @property
    def reset(self) -> int:
        """The register's value after reset, as far as the hardware does not drive it."""
        return sum(field.insert(field.reset) for field in self.fields.values())

    @property
    def writable(self) -> bool:
        return any(field.access.writable for field in self.fields.values())


def _access(node: "FieldNode") -> Access:
    from systemrdl.rdltypes.builtin_enums import OnWriteType

    if node.get_property("singlepulse"):
        return Access.PULSE
    if node.get_property("onwrite") is OnWriteType.woclr:
        return Access.WRITE_ONE_TO_CLEAR
    if node.is_sw_readable and node.is_sw_writable and node.get_property("onwrite") is None:
        return Access.READ_WRITE
    if node.is_sw_readable and not node.is_sw_writable:
        return Access.READ if node.is_hw_writable else Access.CONSTANT
    raise ValueError(f"{node.get_path()}: this kind of access is not supported")


@functools.cache
def _compiled() -> "RootNode":
    from systemrdl.compiler import RDLCompiler

    compiler = RDLCompiler()
    compiler.compile_file(str(RDL_PATH))
    return compiler.elaborate()


def _load() -> typing.Mapping[str, Register]:
    from systemrdl.node import RegNode

    top = _compiled().top
    registers: dict[str, Register] = {}
    for node in top.descendants(unroll=True):
        if not isinstance(node, RegNode):
            continue
        name = node.get_rel_path(top, hier_separator="_")
        fields = {
            field.inst_name: Field(
                name=field.inst_name,
                low=field.low,
                width=field.width,
                access=_access(field),
                reset=field.get_property("reset") or 0,
                description=field.get_property("desc") or "",
            )
            for field in node.fields()
        }
        registers[name] = Register(
            name=name,
            offset=node.absolute_address,
            fields=types.MappingProxyType(fields),
            description=node.get_property("desc") or "",
        )
        if node.absolute_address >= 1 << ADDRESS_BITS or node.size != 4:
            raise ValueError(f"register {name} at {node.absolute_address:#x} does not fit the register port")
    return types.MappingProxyType(registers)


REGISTERS: typing.Mapping[str, Register] = _load()
"""Every register by its full name, in order of offset."""


def c_header() -> str:
    """A C header with offsets, field masks and a struct of the whole map."""
    from peakrdl_cheader.exporter import CHeaderExporter

    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "rondo.h"
        CHeaderExporter().export(_compiled(), str(path), reuse_typedefs=False)
        return path.read_text(encoding="utf-8")


def markdown() -> str:
    """The map as a document."""
    from peakrdl_markdown import MarkdownExporter

    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "registers.md"
        MarkdownExporter().export(_compiled(), str(path))
        return path.read_text(encoding="utf-8")
