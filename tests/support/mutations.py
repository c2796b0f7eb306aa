"""Random mutations of plain data and of bytes: mistakes that people and tools make in YAML files, and worse ones."""

from __future__ import annotations

import copy
import random
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 1.5, float("inf"), "", "0", "x", "a" * 300, "\0", "é\ud800"),
    *([], [None], [[]], [{}], {}, {"": None}, {"name": 1}, {"a": {"b": []}}, "None", "Running", "2024-01-01T00:00:00Z"),
)


def mutated(source: dict[str, Any], rng: random.Random, keep: tuple[str, ...] = ("metadata",)) -> dict[str, Any]:
    """Return a copy with one to four changes; the values of keys in `keep` are changed only below them."""
    result = copy.deepcopy(source)
    for _ in range(rng.randint(1, 4)):
        _mutate(result, rng, keep)
    return result


def _mutate(node: Any, rng: random.Random, keep: tuple[str, ...]) -> None:
    """Change one random place of a tree."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        keys = [key for key in keys if key not in keep]
        if not keys:
            return
        key = rng.choice(keys)
        child = node[key]
        if isinstance(child, (dict, list)) and child and rng.random() < 0.85:
            node, keep = child, ()
            continue
        _change(node, key, rng)
        return


def _change(node: Any, key: Any, rng: random.Random) -> None:
    how = rng.randrange(4)
    if how == 0:
        del node[key]
    elif how == 1 and isinstance(node, list):
        node.append(copy.deepcopy(node[key]))
    elif how == 1:
        node[rng.choice(["name", "spec", "status", "replicas", "x"])] = copy.deepcopy(node[key])
    else:
        node[key] = copy.deepcopy(rng.choice(_VALUES))


def change_bytes(payload: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four places changed: bits, numbers, cuts, repetitions."""
    changed = bytearray(payload)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(changed))
        end = rng.randint(at, min(len(changed), at + 16))
        how = rng.randrange(4)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[at:end]
        elif how == 2:
            changed[at:at] = changed[at:end] * rng.choice((1, 2, 50))
        else:
            changed[at:end] = rng.choice((b"\x00", b"\x7f", b"\xff", b"\xff\xff\xff\xff", b"\x91" * 2000, b"\xc1"))
    return bytes(changed)
