"""The one configuration from which every part of Rondo is sized.

A configuration is a frozen tree of small sections. Presets are TOML files in ``hw/presets``; every key can
be overridden by its dotted name (``array.n=16``). Nothing here is optional in effect: each key changes the
hardware, its timing, or both.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import tomllib
import typing

PRESET_DIRECTORY = pathlib.Path(__file__).parent.parent / "presets"


class ConfigError(ValueError):
    """A configuration that cannot be built; the message is one line fit for the user."""


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayConfig:
    """The multiply-accumulate array: ``n`` input channels by ``n`` output channels a cycle."""

    n: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccumulatorConfig:
    """``lines`` lines of N int32 sums, in two halves: one fills while the other drains."""

    lines: int = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScratchpadConfig:
    """``bytes`` of SRAM in ``banks`` banks; banks 2i and 2i+1 hold the even and odd words of region i."""

    bytes: int = 65536
    banks: int = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class RingsConfig:
    """``count`` rings, each with ``consumers`` consumer cursors."""

    count: int = 16
    consumers: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DmaConfig:
    """Width of the bus, and how much may be under way on it."""

    bus_bits: int = 32
    outstanding: int = 8
    """Read bursts, and write bursts, that may be outstanding for each channel."""
    burst_beats: int = 16
    """Longest AXI burst that a DMA channel issues."""
    buffer_beats: int = 64
    """Beats of read data for which the load channel has room; room is reserved before a read is issued."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """``prefetch`` commands are held ahead of each engine."""

    prefetch: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DramConfig:
    """External memory. ``model`` is ``banked`` (rows, banks, refresh) or ``ideal`` (latency, bandwidth).

    Times are nanoseconds, converted to NPU cycles by rounding up; ``data_rate_mtps`` is transfers a second in
    millions on each of ``data_bits`` wires.
    """

    model: str = "ideal"
    bytes: int = 1 << 30
    latency_cycles: int = 40
    """Ideal model: cycles from a request to its first beat."""
    bytes_per_cycle: int = 32
    """Ideal model: bandwidth shared by reads and writes."""
    data_rate_mtps: int = 4266
    data_bits: int = 32
    access_bytes: int = 64
    banks: int = 8
    row_bytes: int = 4096
    queue: int = 16
    """Accesses whose row is opened ahead of their data."""
    batch: int = 32
    """Accesses in one direction before the bus turns round for the other."""
    controller_ns: float = 20.0
    rcd_ns: float = 18.0
    rp_ns: float = 18.0
    ras_ns: float = 42.0
    rl_ns: float = 17.0
    wl_ns: float = 8.5
    wr_ns: float = 18.0
    wtr_ns: float = 10.0
    rtp_ns: float = 7.5
    rrd_ns: float = 7.5
    refi_ns: float = 3904.0
    rfc_ns: float = 280.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpuConfig:
    """A whole NPU and the memory behind it. Raises ``ConfigError`` when the parts do not fit together."""

    name: str = "custom"
    clock_mhz: float = 100.0
    address_bits: int = 36
    """Width of a DRAM address."""
    command_cycles_max: int = 65536
    """Most cycles that one command may take on an ideal memory: bounds how long a switch waits."""
    array: ArrayConfig = dataclasses.field(default_factory=ArrayConfig)
    accumulator: AccumulatorConfig = dataclasses.field(default_factory=AccumulatorConfig)
    scratchpad: ScratchpadConfig = dataclasses.field(default_factory=ScratchpadConfig)
    rings: RingsConfig = dataclasses.field(default_factory=RingsConfig)
    dma: DmaConfig = dataclasses.field(default_factory=DmaConfig)
    command: CommandConfig = dataclasses.field(default_factory=CommandConfig)
    dram: DramConfig = dataclasses.field(default_factory=DramConfig)

    def __post_init__(self) -> None:
        def require(condition: bool, message: str) -> None:
            if not condition:
                raise ConfigError(message)

        require(
            re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.name) is not None,
            f"name must be 1 to 64 letters, digits, '_', '-' or '.', not {self.name[:80]!r}",
        )
        n = self.array.n
        require(n in (4, 8, 16, 32, 64), f"array.n must be 4, 8, 16, 32 or 64, not {n}")
        require(
            _power_of_two(self.accumulator.lines) and 4 * n <= self.accumulator.lines <= 16384,
            f"accumulator.lines must be a power of two from {4 * n} (4 x N) to 16384, not {self.accumulator.lines}",
        )
        bus = self.dma.bus_bits
        require(bus in (32, 64, 128, 256, 512), f"dma.bus_bits must be 32, 64, 128, 256 or 512, not {bus}")
        banks = self.scratchpad.banks
        require(_power_of_two(banks) and 2 <= banks <= 32, f"scratchpad.banks must be 2, 4, 8, 16 or 32, not {banks}")
        size = self.scratchpad.bytes
        least = self.word_bytes * banks * 8
        require(
            _power_of_two(size) and least <= size <= 1 << 25,
            f"scratchpad.bytes must be a power of two from {least} to {1 << 25}, not {size}",
        )
        require(2 <= self.rings.count <= 32, f"rings.count must be from 2 to 32, not {self.rings.count}")
        require(1 <= self.rings.consumers <= 4, f"rings.consumers must be from 1 to 4, not {self.rings.consumers}")
        beats = self.dma.burst_beats
        require(_power_of_two(beats) and beats <= 64, f"dma.burst_beats must be a power of two up to 64, not {beats}")
        require(
            beats * self.bus_bytes <= 4096,
            f"dma.burst_beats of {beats} at {bus} bits is {beats * self.bus_bytes} bytes; a burst may have 4096",
        )
        outstanding = self.dma.outstanding
        require(1 <= outstanding <= 64, f"dma.outstanding must be from 1 to 64, not {outstanding}")
        buffer = self.dma.buffer_beats
        require(
            _power_of_two(buffer) and beats <= buffer <= 1024,
            f"dma.buffer_beats must be a power of two from dma.burst_beats ({beats}) to 1024, not {buffer}",
        )
        require(2 <= self.command.prefetch <= 16, f"command.prefetch must be from 2 to 16, not {self.command.prefetch}")
        require(32 <= self.address_bits <= 48, f"address_bits must be from 32 to 48, not {self.address_bits}")
        require(1.0 <= self.clock_mhz <= 10000.0, f"clock_mhz must be from 1 to 10000, not {self.clock_mhz}")
        require(
            256 <= self.command_cycles_max <= 1 << 24,
            f"command_cycles_max must be from 256 to {1 << 24}, not {self.command_cycles_max}",
        )
        dram = self.dram
        require(dram.model in ("ideal", "banked"), f"dram.model must be 'ideal' or 'banked', not {dram.model!r}")
        require(
            _power_of_two(dram.bytes) and 1 << 20 <= dram.bytes <= 1 << min(36, self.address_bits),
            f"dram.bytes must be a power of two from {1 << 20} to {1 << min(36, self.address_bits)}, not {dram.bytes}",
        )
        require(
            1 <= dram.latency_cycles <= 1000, f"dram.latency_cycles must be from 1 to 1000, not {dram.latency_cycles}"
        )
        require(
            1 <= dram.bytes_per_cycle <= 512, f"dram.bytes_per_cycle must be from 1 to 512, not {dram.bytes_per_cycle}"
        )
        for key in ("banks", "row_bytes", "access_bytes", "queue"):
            require(_power_of_two(getattr(dram, key)), f"dram.{key} must be a power of two, not {getattr(dram, key)}")
        require(2 <= dram.banks <= 64, f"dram.banks must be from 2 to 64, not {dram.banks}")
        require(16 <= dram.access_bytes <= 256, f"dram.access_bytes must be from 16 to 256, not {dram.access_bytes}")
        require(
            dram.access_bytes <= dram.row_bytes <= 65536,
            f"dram.row_bytes must be from dram.access_bytes ({dram.access_bytes}) to 65536, not {dram.row_bytes}",
        )
        require(2 <= dram.queue <= 64, f"dram.queue must be from 2 to 64, not {dram.queue}")
        require(1 <= dram.batch <= 1024, f"dram.batch must be from 1 to 1024, not {dram.batch}")
        require(
            dram.data_bits in (8, 16, 32, 64, 128), f"dram.data_bits must be 8, 16, 32, 64 or 128, not {dram.data_bits}"
        )
        require(
            100 <= dram.data_rate_mtps <= 20000,
            f"dram.data_rate_mtps must be from 100 to 20000, not {dram.data_rate_mtps}",
        )
        for field in dataclasses.fields(dram):
            if field.name.endswith("_ns"):
                value = getattr(dram, field.name)
                require(0.0 <= value <= 100000.0, f"dram.{field.name} must be from 0 to 100000, not {value}")
        require(dram.refi_ns > 2 * dram.rfc_ns, f"dram.refi_ns must exceed twice dram.rfc_ns, not {dram.refi_ns}")

    @property
    def bus_bytes(self) -> int:
        """Bytes of one beat on the memory port."""
        return self.dma.bus_bits // 8

    @property
    def word_bytes(self) -> int:
        """Bytes of one scratchpad word: the wider of a line and a beat."""
        return max(self.array.n, self.bus_bytes)

    @property
    def scratchpad_address_bits(self) -> int:
        return (self.scratchpad.bytes - 1).bit_length()

    @property
    def accumulator_half(self) -> int:
        """Output pixels that one command may produce."""
        return self.accumulator.lines // 2

    def as_dict(self) -> dict[str, typing.Any]:
        return dataclasses.asdict(self)

    @property
    def hash(self) -> int:
        """32 bits that identify everything but the name; in a register, and in every program image."""
        values = self.as_dict()
        del values["name"]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:4], "little")

    def hardware_key(self) -> dict[str, typing.Any]:
        """The values that change generated hardware (the memory model included), for build caches."""
        values = self.as_dict()
        del values["name"]
        return values


def _coerce(key: str, value: typing.Any, current: typing.Any) -> typing.Any:
    """Convert a TOML value or a command-line string to the type of ``current``."""
    kind = type(current)
    if isinstance(value, str) and kind is not str:
        try:
            if kind is int:
                return int(value, 0)
            return float(value)
        except ValueError:
            raise ConfigError(f"{key} wants a number, not {value!r}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{key} wants {kind.__name__}, not {value!r}")
    return value


def _apply(section: typing.Any, values: dict[str, typing.Any], prefix: str) -> typing.Any:
    names = {field.name for field in dataclasses.fields(section)}
    changes: dict[str, typing.Any] = {}
    for key, value in values.items():
        if key not in names:
            raise ConfigError(f"unknown configuration key {prefix}{key}; known: {', '.join(sorted(names))}")
        current = getattr(section, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise ConfigError(f"{prefix}{key} is a section, not a value")
            changes[key] = _apply(current, value, f"{prefix}{key}.")
        else:
            changes[key] = _coerce(prefix + key, value, current)
    return dataclasses.replace(section, **changes)


def _nest(settings: typing.Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    nested: dict[str, typing.Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
            if not isinstance(level, dict):
                raise ConfigError(f"{key}: {part} is a value, not a section")
        level[last] = value
    return nested


def presets() -> list[str]:
    """Names of the presets that come with Rondo."""
    return sorted(path.stem for path in PRESET_DIRECTORY.glob("*.toml"))


def _merge(target: dict[str, typing.Any], extra: dict[str, typing.Any]) -> dict[str, typing.Any]:
    merged = dict(target)
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def load_config(source: str, settings: typing.Mapping[str, typing.Any] | None = None) -> NpuConfig:
    """Read a preset by name, or a TOML file by path, with ``settings`` (dotted keys) on top.

    Raises
    ------
    ConfigError
        For an unknown preset, an unreadable file, an unknown key or a value out of range.
    """
    path = PRESET_DIRECTORY / f"{source}.toml"
    if source not in presets():
        path = pathlib.Path(source)
        if not source.endswith(".toml"):
            raise ConfigError(f"unknown NPU preset {source!r}; known: {', '.join(presets())}, or a .toml file")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    values.setdefault("name", path.stem)
    return _apply(NpuConfig(), _merge(values, _nest(settings or {})), "")
