"""Taking a state apart and putting it together again; a tensor is whatever the caller says."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Hashable
from typing import Any

import msgspec
import pytest
from kinds_of_state import Pair, check_same, plain_kinds

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.checkpoint.tree import Taken, put_together


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


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    check_same(there_and_back(plain_kinds()), plain_kinds())


def test_containers_hold_tensors() -> None:
    tensors = [Tensor() for _ in range(3)]
    state = {"deque": deque(tensors, maxlen=4), "pair": Pair(tensors[0], [tensors[1]]), "set": {tensors[2]}}
    assert there_and_back(state) == state


class Strict(list[int]):
    """A list that is not made of a list."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__([first, second])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Strict(1, 2), "which cannot be made again from its list. Save a list instead"),
        (defaultdict(lambda: 0), "which a program cannot find by a name"),
        (namedtuple("Inner", "a")(1), "which a program cannot find by a name"),
    ],
)
def test_a_class_that_could_not_be_made_again_is_refused_when_it_is_saved(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"deep is a|deep depends on .*{words}"):
        Taken({"deep": value}, identify)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"tuple": [1, 2], "class": "not_imported:Pair"}, "import not_imported before the checkpoint is loaded"),
        ({"tuple": [1, 2], "class": "os:system"}, "needs the class os:system"),
        ({"tuple": [1, 2], "class": "pathlib:PurePath"}, "has changed since this was saved"),
        ({"dict": [], "default": "os:system"}, "needs the class os:system"),
    ],
)
def test_a_file_names_only_classes_that_are_there_and_fit(node: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        put_together(node, {})


@pytest.mark.parametrize("value", [object(), Counter, lambda: None, memoryview(b"")])
def test_what_cannot_be_held_is_named_by_its_place(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"sampler\.0\.x is a .*, which a checkpoint cannot hold"):
        Taken({"sampler": [{"x": value}]}, identify)


def test_what_is_no_state_is_refused() -> None:
    for wrong in ({"pickle": "x"}, {}):
        with pytest.raises(ValueError, match="is not a known kind of value"):
            put_together(wrong, {})
