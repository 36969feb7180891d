"""Cutting a network into parts for the NPU and the host.

The random tests draw a new seed every time and print it; the environment variable RONDO_SEED gives it back.
"""

import itertools
import os
import re
import secrets
from collections.abc import Sequence

import numpy as np
import pytest

from sw.reader.model import ModelError
from sw.reader.partition import Item, Part, Role, partition

RANDOM_NETWORKS = 1500

ROLES = {"H": Role.HEAVY, "L": Role.LIGHT, "V": Role.VIEW, "B": Role.BORDER, "X": Role.HOST}


@pytest.fixture
def seed() -> int:
    """A fresh seed, or the one that RONDO_SEED gives; printed, so that a failure can be repeated."""
    value = int(os.environ.get("RONDO_SEED") or secrets.randbits(32))
    print(f"RONDO_SEED={value}")
    return value


def network(text: str) -> list[Item]:
    """Items such as ``H a b > c``: role, inputs, outputs."""
    items = []
    for i, line in enumerate(part.split() for part in text.split(",")):
        cut = line.index(">")
        role = ROLES[line[0]]
        reason = "the NPU lacks it" if role in (Role.BORDER, Role.HOST) else ""
        outputs = tuple(line[cut + 1 :])
        items.append(Item(f"{line[0]} #{i} ({outputs[0]})", tuple(line[1:cut]), outputs, role, reason))
    return items


def cut(text: str, inputs: str, outputs: str, *, host_fallback: bool = False) -> str:
    """The parts, for example ``host 0 1: x > a; npu 2: a > y``, after `check` has looked at them."""
    items = network(text)
    parts = partition(items, inputs.split(), outputs.split(), host_fallback=host_fallback)
    check(items, inputs.split(), outputs.split(), parts)
    return "; ".join(
        f"{'npu' if p.on_npu else 'host'} {' '.join(map(str, p.items))}: {' '.join(p.inputs)} > {' '.join(p.outputs)}"
        for p in parts
    )


def needed(items: Sequence[Item], outputs: Sequence[str]) -> set[int]:
    """Numbers of the items whose results reach an output."""
    wanted, found = set(outputs), set()
    for i in reversed(range(len(items))):
        if wanted & set(items[i].outputs):
            wanted |= set(items[i].inputs)
            found.add(i)
    return found


def check(items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str], parts: Sequence[Part]) -> None:
    """What holds of every partition."""
    there = set(inputs)
    runs: list[int] = []
    for k, part in enumerate(parts):
        assert set(part.inputs) <= there
        assert list(part.items) == sorted(set(part.items))
        made = set(part.inputs)
        computed: set[str] = set()  # by more than views
        for i in part.items:
            assert set(items[i].inputs) <= made
            made |= set(items[i].outputs)
            if items[i].role is not Role.VIEW or set(items[i].inputs) & computed:
                computed |= set(items[i].outputs)
        assert set(part.outputs) <= made - set(part.inputs)
        assert {name for i in part.items for name in items[i].inputs} >= set(part.inputs)
        later = {name for after in parts[k + 1 :] for name in after.inputs} | set(outputs)
        assert set(part.outputs) <= later
        assert len(set(part.inputs)) == len(part.inputs)
        assert len(set(part.outputs)) == len(part.outputs)
        assert not there & set(part.outputs), "nothing crosses twice"
        if part.on_npu:
            assert set(part.outputs) <= computed, "an output of the NPU is no view of its input"
        there |= set(part.outputs)
        runs.extend(i for i in part.items if items[i].role is not Role.VIEW)
        for i in part.items:
            assert items[i].role is not Role.HEAVY or part.on_npu
            assert items[i].role not in (Role.BORDER, Role.HOST) or not part.on_npu
    assert set(outputs) <= there
    sides = [part.on_npu for part in parts]
    assert all(a != b for a, b in itertools.pairwise(sides))
    assert True in sides
    expected = needed(items, [name for name in outputs if name not in inputs])
    assert sorted(runs) == sorted(i for i in expected if items[i].role is not Role.VIEW)
    assert {i for part in parts for i in part.items} == expected
    if any(items[i].role is Role.HEAVY for i in expected):
        for part in parts:
            assert not part.on_npu or any(items[i].role is Role.HEAVY for i in part.items)


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "expected"),
    [
        ("H x > y", "x", "y", "npu 0: x > y"),
        ("B x > a,H a > b,B b > y", "x", "y", "host 0: x > a; npu 1: a > b; host 2: b > y"),
        # Light work before, between and behind heavy work; behind a host's item the host goes on.
        ("L x > a,H a > b,L b > c,H c > d,L d > y", "x", "y", "npu 0 1 2 3 4: x > y"),
        (
            "B x > a,L a > b,B b > c,H c > d,B d > e,L e > y",
            "x",
            "y",
            "host 0 1 2: x > c; npu 3: c > d; host 4 5: d > y",
        ),
        # The prefix keeps light work only if nobody else reads it, and then what depends on it leaves too.
        ("L x > a,B a > y,H a > z", "x", "y z", "npu 0 2: x > a z; host 1: a > y"),
        ("L x > a,L a > b,B b > c,B c > y,H b > z", "x", "y z", "npu 0 1 4: x > b z; host 2 3: b > y"),
        ("L x > a,L a > b,B b > c,L c > y,H x > z", "x", "y z", "host 0 1 2: x > c; npu 3 4: c x > y z"),
        ("X x > a,H a > y", "x", "y", "host 0: x > a; npu 1: a > y"),
        # Otherwise the host's item would stand between two programs, the first without heavy work.
        ("L x > a,X a > b,H a b > y", "x", "y", "host 0 1: x > a b; npu 2: a b > y"),
        # A view goes to its readers, to both if both sides read it.
        ("V x > a,H a > b,V b > c,H c > d,V d > y", "x", "y", "npu 0 1 2 3 4: x > y"),
        ("B x > a,V a > b,H b > y", "x", "y", "host 0: x > a; npu 1 2: a > y"),
        (
            "V x > a,B a > b,H b > c,V c > d,V d > e,B e > y",
            "x",
            "y",
            "host 0 1: x > b; npu 2: b > c; host 3 4 5: c > y",
        ),
        ("H x > a,V a > b,H b > y,B b > z", "x", "y z", "npu 0 1 2: x > a y; host 1 3: a > z"),
        ("H x > a,V a > y,B y > z", "x", "y z", "npu 0 1: x > a y; host 1 2: a > z"),
        ("H x > a,B a > b,V b > y", "x", "y", "npu 0: x > a; host 1 2: a > y"),
        # A view of an input is the host's.
        ("V x > y,H y > z", "x", "y z", "host 0: x > y; npu 0 1: x > z"),
        ("V x > y,H x > a,B a > z", "x", "y z", "npu 1: x > a; host 0 2: x a > y z"),
        # Ends.
        ("H x > y", "x", "y x y", "npu 0: x > y"),
        ("H x > y,H x > dead,B dead > deader", "x u", "y", "npu 0: x > y"),
        ("H x > a b,B a > y", "x", "y", "npu 0: x > a; host 1: a > y"),
        ("H x > a,H a > b,B b > y", "x", "a y", "npu 0 1: x > a b; host 2: b > y"),
        # Nothing heavy.
        ("L x u > y", "x u", "y", "npu 0: x u > y"),
        ("B x > a,L a > b,B b > y", "x", "y", "host 0: x > a; npu 1: a > b; host 2: b > y"),
        ("B x > a,L a > b,B b > c,L c > y", "x", "y", "host 0: x > a; npu 1: a > b; host 2 3: b > y"),
    ],
)
def test_parts(text: str, inputs: str, outputs: str, expected: str) -> None:
    assert cut(text, inputs, outputs) == expected
    assert cut(text, inputs, outputs, host_fallback=True) == expected


@pytest.mark.parametrize(
    ("text", "outputs", "expected"),
    [
        ("H x > a,X a > b,H b > y", "y", "npu 0: x > a; host 1: a > b; npu 2: b > y"),
        ("H x > a,X a > y", "y", "npu 0: x > a; host 1: a > y"),
        # Two branches with a gap at different depths share their parts.
        (
            "H x > a,X a > b,H b > c,H x > d,H d > e,B e > f,H f > g,L c g > y",
            "y",
            "npu 0 3 4: x > a e; host 1 5: a e > b f; npu 2 6 7: b f > y",
        ),
        # Light work between two items of the host is the host's.
        ("H x > a,X a > b,L b > c,X c > d,H d > y", "y", "npu 0: x > a; host 1 2 3: a > d; npu 4: d > y"),
        # The host waits with what it could do at once, if it has to come later anyway.
        ("B x > y,H x > a,X a > b,H b > z", "y z", "npu 1: x > a; host 0 2: x a > y b; npu 3: b > z"),
        ("B x > a,H a > b,X b > c,H c > y", "y", "host 0: x > a; npu 1: a > b; host 2: b > c; npu 3: c > y"),
        (
            "H x > a,V a > v,X v > b,V b > w,H w v > c,V c > y",
            "y",
            "npu 0: x > a; host 1 2: a > b; npu 1 3 4 5: a b > y",
        ),
    ],
)
def test_parts_with_the_hosts_help(text: str, outputs: str, expected: str) -> None:
    with pytest.raises(ModelError, match=r"--host-fallback runs it on the host$"):
        cut(text, "x", outputs)
    assert cut(text, "x", outputs, host_fallback=True) == expected


@pytest.mark.parametrize(
    ("text", "outputs", "message"),
    [
        (
            "H x > a,X a > b,H b > c,H c > y",
            "y",
            "X #1 (b): the NPU lacks it; its result is needed by H #2 (c): --host-fallback runs it on the host",
        ),
        # The first cause and the first that needs it, though neighbours stand between.
        (
            "H x > a,B a > p,B a > b,X b > c,L c > d,V d > e,H e > f,H f > y",
            "p y",
            "B #2 (b): the NPU lacks it; its result is needed by H #6 (f): --host-fallback runs it on the host",
        ),
        ("H x > a,B a > b,X b > y", "y", "X #2 (y): the NPU lacks it: --host-fallback runs it on the host"),
    ],
)
def test_refusals_name_the_first_cause(text: str, outputs: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        cut(text, "x", outputs)


def test_a_refusal_without_a_reason() -> None:
    items = [
        Item("CONV_2D #0 (a)", ("x",), ("a",), Role.HEAVY),
        Item("TRANSPOSE_CONV #1 (y)", ("a",), ("y",), Role.HOST),
    ]
    with pytest.raises(ModelError, match=r"^TRANSPOSE_CONV #1 \(y\): the NPU has no such operator: --host-fallback"):
        partition(items, ["x"], ["y"], host_fallback=False)


@pytest.mark.parametrize("host_fallback", [False, True])
@pytest.mark.parametrize(
    ("text", "outputs", "message"),
    [
        ("B x > a,X a > y", "y", r"^the network has nothing for the NPU to compute: B #0 \(a\): the NPU lacks it$"),
        ("V x > y", "y", "^the network has nothing for the NPU to compute$"),
        ("H x > y", "x", "^the network has nothing for the NPU to compute$"),
        ("H x > a,B x > y", "y", "nothing for the NPU"),
        ("H x b > a,H a > b", "b", r"^H #0 \(a\) reads tensor 'b' before it is made$"),
        ("H y > y", "y", r"^H #0 \(y\) reads tensor 'y' before it is made$"),
        ("H x z > y", "y", r"^H #0 \(y\) reads tensor 'z', which no operator makes and which is no input$"),
        ("H x > y", "z", "^output 'z' of the network is made by no operator and is no input$"),
        ("H x > y,H x > y", "y", r"^H #1 \(y\) makes tensor 'y', which is there already$"),
        ("H x > x", "x", r"^H #0 \(x\) makes tensor 'x', which is there already$"),
    ],
)
def test_networks_that_are_none(text: str, outputs: str, message: str, host_fallback: bool) -> None:
    with pytest.raises(ModelError, match=message):
        cut(text, "x", outputs, host_fallback=host_fallback)


def random_network(rng: np.random.Generator, roles: str) -> tuple[list[Item], list[str], list[str]]:
    tensors = [f"x{i}" for i in range(rng.integers(1, 4))]
    inputs = list(tensors)
    weights = rng.dirichlet(np.ones(len(roles)))
    lines = []
    for i in range(rng.integers(1, 14)):
        role = rng.choice(list(roles), p=weights)
        count = 1 if role == "V" else rng.integers(1, 3)
        # Mostly recent tensors, so that networks are deep.
        first = 0 if rng.random() < 0.3 else max(0, len(tensors) - 3)
        sources = rng.choice(tensors[first:], count)
        made = [f"t{i}"] if role == "V" or rng.random() < 0.8 else [f"t{i}", f"u{i}"]
        lines.append(f"{role} {' '.join(sources)} > {' '.join(made)}")
        tensors += made
    outputs = [str(name) for name in rng.choice(tensors[-6:], rng.integers(1, 4))]
    return network(",".join(lines)), inputs, outputs


def attempt(
    items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[tuple[Part, ...] | None, str]:
    """The parts without the host's help, or why there are none."""
    try:
        return partition(items, inputs, outputs, host_fallback=False), ""
    except ModelError as error:
        return None, str(error)


def test_random_networks(seed: int) -> None:
    counts = {"plain": 0, "helped": 0, "nothing": 0}
    for k in range(RANDOM_NETWORKS):
        rng = np.random.default_rng([seed, k])
        items, inputs, outputs = random_network(rng, "HLVBX")
        note = f"RONDO_SEED={seed}, network {k}: {items}, {inputs}, {outputs}"
        alive = needed(items, [name for name in outputs if name not in inputs])
        if not any(items[i].role in (Role.HEAVY, Role.LIGHT) for i in alive):
            with pytest.raises(ModelError, match="nothing for the NPU"):
                partition(items, inputs, outputs, host_fallback=True)
            counts["nothing"] += 1
            continue
        parts = partition(items, inputs, outputs, host_fallback=True)
        check(items, inputs, outputs, parts)
        plain, refusal = attempt(items, inputs, outputs)
        sides = [part.on_npu for part in parts]
        late = [items[i].role for part in parts[sides.index(True) + 1 :] for i in part.items]
        allowed = sides in ([True], [False, True], [True, False], [False, True, False]) and Role.HOST not in late
        if plain is None:
            assert refusal.endswith("--host-fallback runs it on the host"), note
            assert not allowed, note
            counts["helped"] += 1
        else:
            assert plain == parts, note
            assert allowed, note
            counts["plain"] += 1
    assert min(counts.values()) > RANDOM_NETWORKS // 50, counts


def fewest_parts(items: Sequence[Item], inputs: Sequence[str], outputs: Sequence[str]) -> int:
    """Fewest turns of NPU and host, found by trying every order."""
    alive = needed(items, [name for name in outputs if name not in inputs])
    producer = {name: i for i in alive for name in items[i].outputs}
    needs = {i: {producer[name] for name in items[i].inputs if name in producer} for i in alive}
    best = {(frozenset[int](), side): 1 for side in (True, False)}
    pending = list(best)
    while pending:
        state = pending.pop(0)
        done, side = state
        following = [((done, not side), best[state] + 1)] if done else []
        for i in alive - done:
            if needs[i] <= done and side == (items[i].role is Role.HEAVY):
                following.append(((done | {i}, side), best[state]))
        for after, cost in following:
            if cost < best.get(after, len(items) + 2):
                best[after] = cost
                pending.append(after)
    return min(best[frozenset(alive), side] for side in (True, False) if (frozenset(alive), side) in best)


def test_the_hosts_help_takes_the_fewest_parts(seed: int) -> None:
    compared = 0
    for k in range(300):
        items, inputs, outputs = random_network(np.random.default_rng([seed, k]), "HX")
        _, refusal = attempt(items, inputs, outputs)
        if "needed by" in refusal and len(needed(items, outputs)) < 10:
            parts = partition(items, inputs, outputs, host_fallback=True)
            assert len(parts) == fewest_parts(items, inputs, outputs), f"RONDO_SEED={seed}, network {k}"
            compared += 1
    assert compared > 20


def test_long_networks() -> None:
    """So long that quadratic work would show."""
    lines, source = [], "x"
    for i in range(60_000):
        lines.append(f"{'HLXLBV'[i % 6]} {source} > t{i}")
        source = f"t{i}"
    parts = partition(network(",".join(lines)), ["x"], [source], host_fallback=True)
    assert len(parts) == 20_000
    light = ",".join(f"L {f't{i - 1}' if i else 'x'} > t{i}" for i in range(20_000)) + ",H t19999 > y"
    assert len(partition(network(light), ["x"], ["y"], host_fallback=False)) == 1
