"""A nested value with everything that an optimizer's state may contain, and the comparison of two such values."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import numpy as np


class Pair(NamedTuple):
    """A named tuple, as in states of optimizers."""

    first: Any
    second: Any


class Level(enum.IntEnum):
    """A number with a name."""

    LOW = 1


def plain_kinds() -> dict[str, Any]:
    """Return a state without any framework's tensors."""
    return {
        "text": "x",
        "bytes": b"\0\xff",
        "bytearray": bytearray(b"ab"),
        "whole": 2**70,
        "level": Level.LOW,
        "truth": True,
        "complex": 1 + 2j,
        "none": None,
        "range": range(2, 9, 3),
        "last losses": deque([0.1, [2]], maxlen=5),
        "unbounded": deque([1]),
        "pair": Pair((1, "a"), [Pair(0.1, None)]),
        "by default": defaultdict(list, {3: [1]}),
        "ordered": OrderedDict(z=1, a=OrderedDict()),
        "counted": Counter("abba"),
        "set": {1, 2, ("a",)},
        "frozen": frozenset({"b"}),
        "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "booleans": np.array([True, False]),
        "number": np.float32(1 / 3),
        "wide": np.float64(0.1),
    }


def torch_kinds() -> dict[str, Any]:
    """Return the same with tensors of PyTorch in all containers, some of them in several places."""
    import torch

    third = torch.full((2,), 1 / 3)
    return {
        **plain_kinds(),
        "Q": [third],
        "again": third,
        "whole numbers": torch.tensor([2147483649]),
        "deep": {"er": (torch.tensor([True]), [torch.tensor([0.1], dtype=torch.float64)])},
        "half": torch.ones(2, dtype=torch.float16),
        "queued": deque([third, torch.zeros(0, 3)], maxlen=3),
        "named": Pair(third, [torch.tensor(7)]),
        "defaulted": defaultdict(dict, {"a": {"b": torch.tensor(1.5)}}),
        "shape": torch.Size([2, 3]),
    }


def check_same(actual: Any, wanted: Any) -> None:
    """Compare types, containers and values, at any depth."""
    assert type(actual) is type(wanted), (actual, wanted)
    if hasattr(wanted, "dtype"):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape, (actual, wanted)
        assert bool((actual == wanted).all())
    elif isinstance(wanted, dict):
        assert list(actual) == list(wanted)
        assert getattr(actual, "default_factory", None) is getattr(wanted, "default_factory", None)
        for key, value in wanted.items():
            check_same(actual[key], value)
    elif isinstance(wanted, (list, tuple, deque)):
        assert len(actual) == len(wanted)
        assert getattr(actual, "maxlen", None) == getattr(wanted, "maxlen", None)
        for one, other in zip(actual, wanted, strict=True):
            check_same(one, other)
    else:
        assert actual == wanted
