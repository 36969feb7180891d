"""Which operators of a file run on the NPU, which on the host, and in how many stages."""

import dataclasses
import enum
from collections.abc import Sequence

from sw.reader.model import ModelError


class Role(enum.Enum):
    """Where an operator may run."""

    HEAVY = "heavy"
    """On the NPU; worth a program of its own."""
    LIGHT = "light"
    """On the NPU when it stands beside heavy ones, otherwise on the host."""
    VIEW = "view"
    """Moves nothing: belongs to whoever reads it."""
    BORDER = "border"
    """On the host; taken for granted at the ends of a network."""
    HOST = "host"
    """On the host, only where the user allows it."""


@dataclasses.dataclass(frozen=True)
class Item:
    """An operator of the file. ``place`` names it for the user: operator, number, output tensor. ``reason`` says why
    the NPU cannot run it (roles BORDER and HOST)."""

    place: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    role: Role
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """A stage to be: numbers of its items, in order, tensors it reads from outside and those that outsiders read."""

    on_npu: bool
    items: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def partition(
    items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str], *, host_fallback: bool
) -> tuple[Part, ...]:
    """Cut a network, in topological order, into parts that run one after the other.

    There are at most three: what the host does to the inputs, the NPU's program, what the host does to its results.
    Only with ``host_fallback``, and only where that does not suffice, host and NPU alternate more often.  Items whose
    results reach no output belong to no part; a ``VIEW`` that several parts read belongs to each of them.

    Parameters
    ----------
    items
        Operators; ``inputs`` of an item do not name constants.
    inputs, outputs
        Tensors of the whole network.  An output that is an input is nobody's work.
    host_fallback
        Whether the host may run what the NPU lacks between two programs.

    Raises
    ------
    ModelError
        If an operator in the middle cannot run on the NPU and the host may not run it, naming it and why; if nothing
        is left for the NPU; if a tensor is read before it is made, made twice or, though an output, not made at all.
    """
    network = _Network(items, inputs, outputs)
    prefix = network.prefix()
    suffix = network.suffix(prefix)
    if network.has(Role.HEAVY, suffix):
        # Where light work at the front was all that stood between two turns, this may still come to three stages.
        stages = min((network.alternate(prefix), network.alternate(())), key=len)
    else:
        taken = {*prefix, *suffix}
        stages = [_Stage(False, prefix), _Stage(True, [i for i in network.work if i not in taken])]
        stages = [stage for stage in (*stages, _Stage(False, suffix)) if stage.work]
    if not host_fallback and not network.is_plain(stages):
        raise ModelError(network.refusal(suffix))
    if not any(stage.on_npu for stage in stages):
        raise ModelError(network.nothing_to_compute())
    return network.parts(stages)


@dataclasses.dataclass
class _Stage:
    """Numbers of items, views left out and in no order, that run together."""

    on_npu: bool
    work: list[int]


class _Network:
    """Items that the outputs need, and what each of them waits for when views are looked through.

    ``work`` holds their numbers in order, without the views; ``needs`` the work whose results an item reads (of views
    too); ``users`` the work that reads an item's results; ``results`` the work whose results are outputs.
    """

    def __init__(self, items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.items = items
        self.inputs = frozenset(inputs)
        self.outputs = tuple(name for name in dict.fromkeys(outputs) if name not in self.inputs)
        self.producer = _producers(items, inputs)
        for name in self.outputs:
            if name not in self.producer:
                raise ModelError(f"output {name!r} of the network is made by no operator and is no input")
        alive = self._alive()
        self.work = [i for i in alive if items[i].role is not Role.VIEW]
        self.needs: dict[int, set[int]] = {}
        self.users: dict[int, set[int]] = {i: set() for i in self.work}
        for i in alive:
            self.needs[i] = self._makers(items[i].inputs)
            if items[i].role is not Role.VIEW:
                for source in self.needs[i]:
                    self.users[source].add(i)
        self.results = self._makers(self.outputs)

    def _alive(self) -> list[int]:
        wanted = set(self.outputs)
        found: list[int] = []
        for i in reversed(range(len(self.items))):
            if not wanted.isdisjoint(self.items[i].outputs):
                wanted.update(self.items[i].inputs)
                found.append(i)
        return found[::-1]

    def _makers(self, tensors: Sequence[str]) -> set[int]:
        """The work that makes tensors, or what views show as them."""
        found: set[int] = set()
        for i in (self.producer[name] for name in tensors if name in self.producer):
            found |= self.needs[i] if self.items[i].role is Role.VIEW else {i}
        return found

    def has(self, role: Role, numbers: Sequence[int]) -> bool:
        return any(self.items[i].role is role for i in numbers)

    def prefix(self) -> list[int]:
        """What the host runs before everything else.

        Light work is among it only when nobody but the prefix reads its result, and never when the network has no
        heavy work: then it is all that there is for the NPU.
        """
        for_npu = {Role.HEAVY} if self.has(Role.HEAVY, self.work) else {Role.HEAVY, Role.LIGHT}
        chosen: set[int] = set()
        for i in self.work:
            if self.items[i].role not in for_npu and self.needs[i] <= chosen:
                chosen.add(i)
        light = {i for i in chosen if self.items[i].role is Role.LIGHT}
        leaving = [i for i in light if i in self.results or not self.users[i] <= chosen]
        while leaving:
            i = leaving.pop()
            if i in chosen:
                chosen.remove(i)
                # Whoever needs it cannot stay, nor light work that it needs: that now has a reader outside.
                leaving.extend(self.users[i] & chosen)
                leaving.extend(self.needs[i] & light)
        return [i for i in self.work if i in chosen]

    def suffix(self, prefix: Sequence[int]) -> list[int]:
        """Work that the host must do and that is not in the prefix, with everything that waits for it."""
        early, late = set(prefix), set[int]()
        for i in self.work:
            on_host = self.items[i].role in (Role.BORDER, Role.HOST) and i not in early
            if on_host or not self.needs[i].isdisjoint(late):
                late.add(i)
        return [i for i in self.work if i in late]

    def is_plain(self, stages: Sequence[_Stage]) -> bool:
        """Whether there is one program, and behind it only what the host runs as a matter of course."""
        programs = [k for k, stage in enumerate(stages) if stage.on_npu]
        return not programs or not any(s.on_npu or self.has(Role.HOST, s.work) for s in stages[programs[0] + 1 :])

    def refusal(self, suffix: Sequence[int]) -> str:
        """The message when the suffix holds heavy work, or work that the host runs only where the user allows it."""
        before_heavy: set[int] = set()
        for i in reversed(suffix):
            if self.items[i].role is Role.HEAVY or not self.users[i].isdisjoint(before_heavy):
                before_heavy.add(i)
        causes = [i for i in suffix if self.items[i].role in (Role.BORDER, Role.HOST)]
        cause = next((i for i in causes if i in before_heavy), None)
        if cause is not None:
            place = self.items[self._first_heavy_behind(cause)].place
            return f"{self._why(cause)}; its result is needed by {place}: --host-fallback runs it on the host"
        cause = next(i for i in causes if self.items[i].role is Role.HOST)
        return f"{self._why(cause)}: --host-fallback runs it on the host"

    def _first_heavy_behind(self, cause: int) -> int:
        behind = {cause}
        for i in self.work:
            if not self.needs[i].isdisjoint(behind):
                behind.add(i)
                if self.items[i].role is Role.HEAVY:
                    return i
        raise AssertionError("there is heavy work behind the cause")

    def _why(self, i: int) -> str:
        return f"{self.items[i].place}: {self.items[i].reason or 'the NPU has no such operator'}"

    def nothing_to_compute(self) -> str:
        """The message when the host would run everything."""
        text = "the network has nothing for the NPU to compute"
        return f"{text}: {self._why(self.work[0])}" if self.work else text

    def alternate(self, first: Sequence[int]) -> list[_Stage]:
        """Turns of host and NPU, each taking all that is ready for it, after the host has run ``first``.

        A turn of the NPU without heavy work is not worth a program: the host takes it.
        """
        stages = [_Stage(False, list(first))]
        placed = set(first)
        missing = {i: len(self.needs[i] - placed) for i in self.work if i not in placed}
        ready: dict[bool, list[int]] = {True: [], False: []}
        for i, count in missing.items():
            if not count:
                ready[self._suits_npu(i)].append(i)
        on_npu = True
        while ready[True] or ready[False]:
            turn: list[int] = []
            while ready[on_npu]:
                i = ready[on_npu].pop()
                turn.append(i)
                for j in self.users[i]:
                    missing[j] -= 1
                    if not missing[j]:
                        ready[self._suits_npu(j)].append(j)
            stages.append(_Stage(on_npu and self.has(Role.HEAVY, turn), turn))
            on_npu = not on_npu
        merged: list[_Stage] = []
        for stage in stages:
            if merged and merged[-1].on_npu == stage.on_npu:
                merged[-1].work.extend(stage.work)
            elif stage.work:
                merged.append(stage)
        return merged

    def _suits_npu(self, i: int) -> bool:
        return self.items[i].role in (Role.HEAVY, Role.LIGHT)

    def parts(self, stages: list[_Stage]) -> tuple[Part, ...]:
        """The stages with their views and the tensors that cross between them."""
        requested = self._place_outputs(stages)
        members = [self._with_views(stage.work, names) for stage, names in zip(stages, requested, strict=True)]
        parts: list[Part] = []
        later: set[str] = set()
        for stage, numbers, results in reversed(list(zip(stages, members, requested, strict=True))):
            made = {name for i in numbers for name in self.items[i].outputs}
            reads = dict.fromkeys(name for i in numbers for name in self.items[i].inputs if name not in made)
            # What crosses is no view's, for each part has its own views.
            wanted = later.union(results)
            outputs = tuple(name for i in numbers for name in self.items[i].outputs if name in wanted)
            parts.append(Part(stage.on_npu, tuple(numbers), tuple(reads), outputs))
            later.update(reads)
        return tuple(reversed(parts))

    def _place_outputs(self, stages: list[_Stage]) -> list[list[str]]:
        """Outputs of the network by the stage that makes each: the one that makes what it shows, if it is a view.

        A view of nothing but the network's inputs is the host's, in a stage of its own if there is no other.
        """
        stage_of = {i: k for k, stage in enumerate(stages) for i in stage.work}
        makers = [self._makers([name]) for name in self.outputs]
        host = next((k for k, stage in enumerate(stages) if not stage.on_npu), None)
        if host is None and not all(makers):
            stages.insert(0, _Stage(False, []))
            stage_of = {i: k + 1 for i, k in stage_of.items()}
            host = 0
        requested: list[list[str]] = [[] for _ in stages]
        for name, found in zip(self.outputs, makers, strict=True):
            k = max((stage_of[i] for i in found), default=host)
            assert k is not None  # there is a stage of the host where `found` may be empty
            requested[k].append(name)
        return requested

    def _with_views(self, work: Sequence[int], requested: Sequence[str]) -> list[int]:
        """Numbers of a part's items: its work and the views through which it, or an output, sees something."""
        found = set(work)
        pending = [*requested, *(name for i in work for name in self.items[i].inputs)]
        while pending:
            i = self.producer.get(pending.pop())
            if i is not None and i not in found and self.items[i].role is Role.VIEW:
                found.add(i)
                pending.extend(self.items[i].inputs)
        return sorted(found)


def _producers(items: Sequence[Item], inputs: Sequence[str]) -> dict[str, int]:
    """Number of the item that makes each tensor.  Raises ``ModelError`` unless each is made once, before it is read."""
    found: dict[str, int] = {}
    known = set(inputs)
    for i, item in enumerate(items):
        for name in item.inputs:
            if name not in known:
                made = any(name in other.outputs for other in items)
                fault = "before it is made" if made else "which no operator makes and which is no input"
                raise ModelError(f"{item.place} reads tensor {name!r}{' ' if made else ', '}{fault}")
        for name in item.outputs:
            if name in known:
                raise ModelError(f"{item.place} makes tensor {name!r}, which is there already")
            known.add(name)
            found[name] = i
    return found
