"""Taking a state apart and putting it together again; a tensor is whatever the caller says."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Any

import msgspec
import pytest

from farandole.elastic.checkpoint.tree import Taken, put_together
from farandole.errors import InvalidRequestError


class Tensor:
    """Stands for a framework's tensor."""


def identify(value: Any) -> Hashable | None:
    return id(value) if isinstance(value, Tensor) else None


def there_and_back(state: Any) -> Any:
    taken = Taken(state, identify)
    return put_together(msgspec.json.decode(msgspec.json.encode(taken.plain)), taken.tensors)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**53 + 1,
        2**200,
        1.0,
        -0.0,
        1e22,
        5e-324,
        math.inf,
        -math.inf,
        "",
        "ü\n\0",
        b"",
        b"\0\xff",
        [],
        (),
        {},
        [1, (2, [3, ()])],
        {0: "a", "0": "b", (1, 2): "c", None: "d", True: "e", 1.5: "f"},
        {"tensor": "no", "list": [1], "dict": {}},
        OrderedDict([("b", 1), ("a", 2)]),
        Counter({30: 2, 60: 1}),
    ],
    ids=repr,
)
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    back = there_and_back({"value": value})["value"]
    assert back == value and type(back) is type(value) and repr(back) == repr(value)


def test_nan_comes_back() -> None:
    assert math.isnan(there_and_back(math.nan))


def test_tensors_are_named_by_their_path_and_come_back() -> None:
    state = {"model": {"weight": Tensor()}, "optimizer": {"state": {0: {"average": Tensor()}}, "groups": [Tensor()]}}
    taken = Taken(state, identify)
    assert list(taken.tensors) == ["model.weight", "optimizer.state.0.average", "optimizer.groups.0"]
    back = put_together(taken.plain, taken.tensors)
    assert back == state


def test_a_tensor_in_two_places_is_one() -> None:
    tied = Tensor()
    taken = Taken({"in": tied, "out": [tied]}, identify)
    assert list(taken.tensors) == ["in"]
    back = put_together(taken.plain, taken.tensors)
    assert back["in"] is back["out"][0] is tied


def test_names_that_would_be_the_same_are_not() -> None:
    first, second, third, fourth = (Tensor() for _ in range(4))
    state = {"a": {"b": first}, "a.b": second, 0: third, "0": fourth}
    taken = Taken(state, identify)
    assert list(taken.tensors) == ["a.b", "a.b#2", "0", "0#2"]
    assert put_together(taken.plain, taken.tensors) == state
    assert list(Taken({"__metadata__": first}, identify).tensors) == ["__metadata__#2"]


def test_what_modules_note_beside_their_state_comes_back() -> None:
    state: Any = OrderedDict(weight=Tensor())
    state._metadata = OrderedDict({"": {"version": 2}})
    assert there_and_back(state)._metadata == state._metadata


@pytest.mark.parametrize("value", [{1}, object(), Counter, lambda: None, 1j])
def test_what_cannot_be_held_is_named_by_its_place(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"sampler\.0\.x is a .*, which a checkpoint cannot hold"):
        Taken({"sampler": [{"x": value}]}, identify)


def test_what_is_no_state_is_refused() -> None:
    for wrong in ({"pickle": "x"}, {}):
        with pytest.raises(ValueError, match="no kind of value"):
            put_together(wrong, {})
