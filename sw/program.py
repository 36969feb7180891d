"""The program image: everything that the driver needs to run a network, and reports need to name its parts."""

import dataclasses
import io
import json
import pathlib
import typing
import zipfile
import zlib

from hw.spec.commands import COMMAND_BYTES, Engine
from sw.files import write_whole

FORMAT = "rondo-program"
VERSION = 1

BASE_CONSTANTS, BASE_ARENA, BASE_INPUT, BASE_OUTPUT = range(4)
"""Which buffer each base register is bound to."""


_DAMAGE = (zipfile.BadZipFile, zlib.error, LookupError, TypeError, ValueError, AttributeError, RuntimeError, EOFError)
"""What reading a damaged image raises; RuntimeError for an encrypted entry or a compression that nobody knows."""


class ProgramError(ValueError):
    """A program image that cannot be used; the message is one line fit for the user."""


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: buffer (base register), offset, shape (height, width, channels)."""

    name: str
    base: int
    offset: int
    shape: tuple[int, int, int]
    packed: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    """One step: its name, the graph's operators in it, multiply-accumulates, first and last command of each stream."""

    name: str
    kind: str
    operators: tuple[str, ...]
    macs: int
    commands: dict[str, tuple[int, int]]
    """Engine name to half-open range of command indices."""


@dataclasses.dataclass(frozen=True)
class SafePoint:
    """A place where a switch is cheap: program counters of the three engines, and what lives there."""

    commands: tuple[int, int, int]
    live_bytes: int
    restartable: bool


@dataclasses.dataclass(frozen=True)
class RingUse:
    """One configuration of a ring, for reports."""

    layer: str
    role: str
    ring: int
    base: int
    slots: int
    slot_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A compiled network. ``streams`` are each engine's commands, ``constants`` the bytes behind base register 0."""

    name: str
    config_hash: int
    n: int
    policy: str
    streams: dict[Engine, bytes]
    constants: bytes
    buffer_bytes: dict[str, int]
    tensors: dict[str, StoredTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layers: tuple[Layer, ...]
    rings: tuple[RingUse, ...]
    scratchpad_peak: int
    arena_lower_bound: int
    tensors_kept: bool = False
    """Whether no tensor lies over another, so that all can be read back after a job."""
    safe_points: tuple[SafePoint, ...] = ()

    @property
    def macs(self) -> int:
        return sum(layer.macs for layer in self.layers)

    def commands(self, engine: Engine) -> int:
        return len(self.streams[engine]) // COMMAND_BYTES

    def command(self, engine: Engine, index: int) -> int:
        """Bits of one command."""
        raw = self.streams[engine][index * COMMAND_BYTES : (index + 1) * COMMAND_BYTES]
        return int.from_bytes(raw, "little")

    def save(self, path: pathlib.Path) -> None:
        """Write the image; the file appears whole or not at all. Raises ``ProgramError`` if it cannot be written."""
        manifest: dict[str, typing.Any] = {
            "format": FORMAT,
            "version": VERSION,
            **{key: value for key, value in dataclasses.asdict(self).items() if key not in ("streams", "constants")},
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", json.dumps(manifest, indent=1))
            for engine, stream in self.streams.items():
                archive.writestr(f"{engine.name.lower()}.bin", stream)
            archive.writestr("constants.bin", self.constants)
        try:
            write_whole(path, buffer.getvalue())
        except OSError as error:
            raise ProgramError(f"cannot write {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: pathlib.Path) -> "Program":
        """Read an image. Raises ``ProgramError`` for a file that is not one, or of another version."""
        try:
            with zipfile.ZipFile(path) as archive:
                manifest = json.loads(archive.read("manifest.json"))
                if manifest.get("format") != FORMAT:
                    raise ProgramError(f"{path} is not a Rondo program")
                if manifest.get("version") != VERSION:
                    raise ProgramError(
                        f"{path} has program version {manifest.get('version')}; this Rondo reads version {VERSION}"
                    )
                streams = {engine: archive.read(f"{engine.name.lower()}.bin") for engine in Engine}
                constants = archive.read("constants.bin")
            return cls(
                name=manifest["name"],
                config_hash=int(manifest["config_hash"]),
                n=manifest["n"],
                policy=manifest["policy"],
                streams=streams,
                constants=constants,
                buffer_bytes=manifest["buffer_bytes"],
                tensors={
                    name: StoredTensor(**{**value, "shape": tuple(value["shape"])})
                    for name, value in manifest["tensors"].items()
                },
                inputs=tuple(manifest["inputs"]),
                outputs=tuple(manifest["outputs"]),
                layers=tuple(
                    Layer(
                        name=value["name"],
                        kind=value["kind"],
                        operators=tuple(value["operators"]),
                        macs=value["macs"],
                        commands={key: (first, last) for key, (first, last) in value["commands"].items()},
                    )
                    for value in manifest["layers"]
                ),
                rings=tuple(RingUse(**value) for value in manifest["rings"]),
                scratchpad_peak=manifest["scratchpad_peak"],
                arena_lower_bound=manifest["arena_lower_bound"],
                tensors_kept=manifest["tensors_kept"],
                safe_points=tuple(
                    SafePoint(tuple(value["commands"]), value["live_bytes"], value["restartable"])
                    for value in manifest["safe_points"]
                ),
            )
        except OSError as error:
            raise ProgramError(f"cannot read {path}: {error.strerror or error}") from None
        except ProgramError:
            raise
        except _DAMAGE as error:
            raise ProgramError(f"{path} is not a valid Rondo program: {error}") from None
