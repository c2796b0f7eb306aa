"""Every collective in every form, for every element type and in several process sets, against numpy.

The other files of this suite look at one collective each, and at what is special about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from frontends import DTYPES
from oracle import FLOATS, check, reduced, scattered_rows, values

from farandole.worker.collectives.all_collectives import COLLECTIVES as DECLARED

OPS = ["Average", "Sum", "Min", "Max", "Product"]


class Member(NamedTuple):
    """A rank's place in the process set that a collective runs in."""

    ranks: list[int]
    position: int
    dtype: str


class Collective(NamedTuple):
    """A collective as these tests see it.

    Attributes:
        forms: by name, what gives the outputs for a list of tensors, and whether it changes the tensors.
        options: named arguments of the calls, for each of which all forms are tried.
        inputs: what a rank gives: arrays, from (rank, member).
        wanted: what a member gets, from (one array of each rank, member, options).
        arguments: further arguments of the calls, from (member, input).
    """

    forms: dict[str, tuple[Callable[..., list[Any]], bool]]
    options: list[dict[str, Any]]
    inputs: Callable[[int, Member], list[np.ndarray]]
    wanted: Callable[[list[np.ndarray], Member, dict[str, Any]], np.ndarray]
    arguments: Callable[[Member, Any], dict[str, Any]] = lambda member, tensor: {}


# --- forms ---------------------------------------------------------------------------------------------------


def one_by_one(method: str, in_place: bool = False) -> tuple[Callable[..., list[Any]], bool]:
    return lambda front, calls: [getattr(front.hvd, method)(tensor, **how) for tensor, how in calls], in_place


def at_once(method: str) -> tuple[Callable[..., list[Any]], bool]:
    return lambda front, calls: front.at_once([(method, tensor, how) for tensor, how in calls]), False


def at_once_in_place(method: str) -> tuple[Callable[..., list[Any]], bool]:
    def run(front, calls):
        handles = [getattr(front.hvd, method)(tensor, **how) for tensor, how in calls]
        return [front.hvd.synchronize(handle) for handle in reversed(handles)][::-1]

    return run, True


def grouped(method: str, in_place: bool = False) -> tuple[Callable[..., list[Any]], bool]:
    def run(front, calls):
        return list(getattr(front.hvd, method)([tensor for tensor, _ in calls], **calls[0][1]))

    return run, in_place


def grouped_later(method: str) -> tuple[Callable[..., list[Any]], bool]:
    def run(front, calls):
        (outputs,) = front.at_once([(method, [tensor for tensor, _ in calls], calls[0][1])])
        return list(outputs)

    return run, False


def grouped_later_in_place(method: str) -> tuple[Callable[..., list[Any]], bool]:
    def run(front, calls):
        return list(front.hvd.synchronize(getattr(front.hvd, method)([tensor for tensor, _ in calls], **calls[0][1])))

    return run, True


def output_only(form: tuple[Callable[..., list[Any]], bool]) -> tuple[Callable[..., list[Any]], bool]:
    run, in_place = form
    return lambda front, calls: [output for output, _ in run(front, calls)], in_place


# --- collectives ---------------------------------------------------------------------------------------------


def reduction_options(*further: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"op": op} for op in OPS] + [*further]


def wanted_reduction(inputs: list[np.ndarray], member: Member, options: dict[str, Any]) -> np.ndarray:
    scales = options.get("prescale_factor", 1.0), options.get("postscale_factor", 1.0)
    return reduced(inputs, options["op"], member.dtype, *scales)


def wanted_scattered(inputs: list[np.ndarray], member: Member, options: dict[str, Any]) -> np.ndarray:
    rows = scattered_rows(len(inputs[0]), len(member.ranks))
    return wanted_reduction(inputs, member, options)[rows[member.position]]


def wanted_at_root(inputs: list[np.ndarray], member: Member, options: dict[str, Any]) -> np.ndarray:
    is_root = member.position == len(member.ranks) - 1
    return wanted_reduction(inputs, member, options) if is_root else inputs[member.position]


def splits_of(rank: int, member: Member) -> list[int]:
    return [(rank + position) % 3 for position in range(len(member.ranks))]


def wanted_exchange(inputs: list[np.ndarray], member: Member, options: dict[str, Any]) -> np.ndarray:
    parts = []
    for rank, array in zip(member.ranks, inputs, strict=True):
        splits = splits_of(rank, member)
        begin = sum(splits[: member.position])
        parts.append(array[begin : begin + splits[member.position]])
    return np.concatenate(parts)


COLLECTIVES = {
    "allreduce": Collective(
        forms={
            "plain": one_by_one("allreduce"),
            "async": at_once("allreduce"),
            "in place": one_by_one("allreduce_", True),
            "async in place": at_once_in_place("allreduce_async_"),
            "grouped": grouped("grouped_allreduce"),
            "grouped async": grouped_later("grouped_allreduce"),
            "grouped in place": grouped("grouped_allreduce_", True),
            "grouped async in place": grouped_later_in_place("grouped_allreduce_async_"),
        },
        options=reduction_options({"op": "Sum", "prescale_factor": 0.5, "postscale_factor": 3.0}),
        inputs=lambda rank, member: [values(rank, shape, member.dtype) for shape in ((7,), (3, 5), ())],
        wanted=wanted_reduction,
    ),
    "reducescatter": Collective(
        forms={
            "plain": one_by_one("reducescatter"),
            "async": at_once("reducescatter"),
            "grouped": grouped("grouped_reducescatter"),
            "grouped async": grouped_later("grouped_reducescatter"),
        },
        options=reduction_options({"op": "Sum", "prescale_factor": 0.5, "postscale_factor": 3.0}),
        inputs=lambda rank, member: [values(rank, shape, member.dtype) for shape in ((7, 3), (2,), (8, 1, 2))],
        wanted=wanted_scattered,
    ),
    "reduce": Collective(
        forms={
            "plain": one_by_one("reduce"),
            "async": at_once("reduce"),
            "in place": one_by_one("reduce_", True),
            "async in place": at_once_in_place("reduce_async_"),
            "grouped": grouped("grouped_reduce"),
            "grouped async": grouped_later("grouped_reduce"),
            "grouped in place": grouped("grouped_reduce_", True),
            "grouped async in place": grouped_later_in_place("grouped_reduce_async_"),
        },
        options=reduction_options({"op": "Sum", "prescale_factor": 0.5, "postscale_factor": 3.0}),
        inputs=lambda rank, member: [values(rank, shape, member.dtype) for shape in ((7,), (3, 5), ())],
        wanted=wanted_at_root,
        arguments=lambda member, tensor: {"root_rank": member.ranks[-1]},
    ),
    "allgather": Collective(
        forms={
            "plain": one_by_one("allgather"),
            "async": at_once("allgather"),
            "grouped": grouped("grouped_allgather"),
            "grouped async": grouped_later("grouped_allgather"),
        },
        options=[{}],
        inputs=lambda rank, member: [values(rank, shape, member.dtype) for shape in ((rank, 3), (2,), (5 - rank, 1))],
        wanted=lambda inputs, member, options: np.concatenate(inputs),
    ),
    "broadcast": Collective(
        forms={
            "plain": one_by_one("broadcast"),
            "async": at_once("broadcast"),
            "in place": one_by_one("broadcast_", True),
            "async in place": at_once_in_place("broadcast_async_"),
        },
        options=[{}],
        inputs=lambda rank, member: [values(rank, shape, member.dtype) for shape in ((7,), (2, 3), ())],
        wanted=lambda inputs, member, options: inputs[-1],
        arguments=lambda member, tensor: {"root_rank": member.ranks[-1]},
    ),
    "alltoall": Collective(
        forms={
            "plain": output_only(one_by_one("alltoall")),
            "async": output_only(at_once("alltoall")),
        },
        options=[{}],
        # One row is left over, and stays.
        inputs=lambda rank, member: [
            values(rank, (sum(splits_of(rank, member)) + 1, *row), member.dtype) for row in ((), (3,), (2, 2))
        ],
        wanted=wanted_exchange,
        arguments=lambda member, tensor: {"splits": splits_of(member.ranks[member.position], member)},
    ),
}


# For front ends that know the shapes of all results before any rank has said something: ranks give as many rows, which
# are shared out in equal parts.
EVEN = {
    "reducescatter": COLLECTIVES["reducescatter"]._replace(
        inputs=lambda rank, member: [
            values(rank, (rows * len(member.ranks), *row), member.dtype)
            for rows, row in ((3, (3,)), (1, ()), (4, (1, 2)))
        ],
    ),
    "allgather": COLLECTIVES["allgather"]._replace(
        inputs=lambda rank, member: [values(rank, shape, member.dtype) for shape in ((4, 3), (2,), (0, 2), (1, 1))],
    ),
    "alltoall": COLLECTIVES["alltoall"]._replace(
        inputs=lambda rank, member: [
            values(rank, (2 * len(member.ranks) + 1, *row), member.dtype) for row in ((), (3,), (2, 2))
        ],
        wanted=lambda inputs, member, options: np.concatenate(
            [array[2 * member.position : 2 * member.position + 2] for array in inputs]
        ),
        arguments=lambda member, tensor: {"splits": [2] * len(member.ranks)},
    ),
}


def sets_to_try(hvd: Any) -> list[Any]:
    """Register sets, among them such that overlap and such that this rank is not in."""
    size = hvd.size()
    ranks = [list(range(0, size, 2)), list(range(1, size, 2))] if size > 1 else []
    ranks += [list(range(1, size))] if size > 2 else []
    return [hvd.global_process_set, *map(hvd.add_process_set, ranks)]


def run_forms(front: Any, collective: Collective, process_set: Any, dtype: str) -> None:
    hvd = front.hvd
    member = Member(process_set.ranks, process_set.rank(), dtype)
    given = [collective.inputs(rank, member) for rank in member.ranks]
    everybody = process_set is hvd.global_process_set
    # Operations are the same in every set: there, the last ones will do.
    for options in collective.options if everybody and front.is_thorough else collective.options[-2:]:
        if dtype == "bool" and (options.get("op") == "Average" or "prescale_factor" in options):
            continue  # Truth has neither averages nor multiples.
        wanted = [collective.wanted(list(inputs), member, options) for inputs in zip(*given, strict=True)]
        how = {key: getattr(hvd, value) if key == "op" else value for key, value in options.items()}
        for name, (run, in_place) in collective.forms.items():
            if in_place and "in place" not in front.has:
                continue
            if name.endswith("async in place") and "handles" not in front.has:
                continue
            tensors = [front.tensor(array, dtype) for array in given[member.position]]
            calls = [
                (tensor, {**how, **collective.arguments(member, tensor), "process_set": process_set})
                for tensor in tensors
            ]
            outputs = run(front, calls)
            assert len(outputs) == len(tensors)
            for output, tensor, total, before in zip(outputs, tensors, wanted, given[member.position], strict=True):
                assert front.dtype(output) == dtype, (name, options)
                try:
                    check(front.array(output), total, dtype)
                except AssertionError as error:
                    raise AssertionError(f"{name} with {options}, {dtype}, in {process_set}") from error
                assert (output is tensor) == in_place, (name, options)
                if not in_place:
                    np.testing.assert_array_equal(front.array(tensor), before)


def test_no_declared_form_is_left_out():
    assert set(COLLECTIVES) == set(DECLARED)
    for name, collective in COLLECTIVES.items():
        words = ("grouped", "async", "in place")
        declared = {
            " ".join(
                word for word, holds in zip(words, (form.grouped, form.later, form.in_place), strict=True) if holds
            )
            for form in DECLARED[name].forms()
        }
        assert set(collective.forms) == {form or "plain" for form in declared}


@pytest.mark.needs("alltoall", "grouped", "process sets")
@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize(
    "dtypes", [FLOATS, [dtype for dtype in DTYPES if dtype not in FLOATS]], ids=["floats", "whole"]
)
def test_every_form(world, kind, dtypes):
    def body(front):
        hvd = front.hvd
        collective = COLLECTIVES[kind] if "ragged" in front.has else EVEN.get(kind, COLLECTIVES[kind])
        sets = sets_to_try(hvd)
        for process_set in sets:
            if process_set.included():
                for dtype in filter(front.dtypes.__contains__, dtypes):
                    run_forms(front, collective, process_set, dtype)
        for process_set in sets[1:]:
            assert hvd.remove_process_set(process_set)

    world.run(body)


@pytest.mark.needs("grouped", "process sets")
def test_forms_with_scales_of_every_float(world):
    """Factors that are not powers of two, so that rounding shows, within the type's range."""

    def body(front):
        hvd = front.hvd
        options = {"op": "Average", "prescale_factor": 0.3, "postscale_factor": 0.7}
        allreduce = COLLECTIVES["allreduce"]._replace(options=[options])
        for dtype in filter(front.dtypes.__contains__, FLOATS):
            run_forms(front, allreduce, hvd.global_process_set, dtype)

    world.run(body)


# --- arguments of a wrong type -------------------------------------------------------------------------------


WRONG_OPTIONS = [
    ("allreduce", {"op": "sum"}, "op is 'sum', but should be one of hvd.Average, hvd.Sum"),
    ("allreduce", {"prescale_factor": "2"}, "prescale_factor is '2', but should be a number"),
    ("broadcast", {"root_rank": "0"}, "root_rank is '0', but should be a rank"),
    ("broadcast", {"root_rank": None}, "root_rank is None, but should be a rank"),
    ("reducescatter", {"op": "sum"}, "op is 'sum', but should be one of hvd.Average, hvd.Sum"),
]
WRONG_SETS = [
    (function, {"process_set": wrong}, f"process_set is {wrong!r}, but should be a ProcessSet")
    for function, wrong in [("allreduce", 3), ("allgather", [0, 1]), ("alltoall", "all"), ("reducescatter", 3.0)]
]


@pytest.mark.parametrize(
    "wrong", [WRONG_OPTIONS, pytest.param(WRONG_SETS, marks=pytest.mark.needs("process sets"))], ids=["options", "sets"]
)
def test_argument_of_wrong_type_is_named_with_what_it_should_be(world, wrong):
    """The error is raised at once on every rank, and the next call works."""

    def body(front):
        hvd = front.hvd
        tensor = front.tensor(np.ones(hvd.size()))
        for name in (None, "wrong"):
            for function, arguments, told in wrong:
                try:
                    getattr(hvd, function)(tensor, name=name, **arguments)
                except ValueError as error:
                    assert f"{function}: {told}" in str(error), error
                else:
                    raise AssertionError(f"{function} took {arguments}")
        assert front.number(hvd.allreduce(front.tensor([1.0]), op=hvd.Sum)) == hvd.size()

    world.run(body)


GROUPED = {
    form.function(name): {"root_rank": 0} if name == "reduce" else {}
    for name, collective in DECLARED.items()
    for form in collective.forms()
    if form.grouped
}


@pytest.mark.needs("grouped")
def test_grouped_function_takes_several_tensors_only(world):
    """The error says at once what was given and what is wanted; JAX also takes structures, where nothing is begun."""

    def body(front):
        hvd = front.hvd
        tensor = front.tensor(1.0)
        wrong = {
            "dict": {"a": tensor},
            "str": "text",
            "bytes": b"text",
            "set": {1.0},
            "NoneType": None,
            "int": 5,
            type(tensor).__name__: tensor,
        }
        if not front.is_thorough:
            return  # The compiled function of the test would get the argument first.
        for function, options in GROUPED.items():
            if not hasattr(hvd, function):
                continue
            structures = "jax" in front.has and "async" not in function
            for kind, given in wrong.items():
                if structures and given is not wrong["set"] and not isinstance(given, (str, bytes)):
                    continue
                try:
                    getattr(hvd, function)(given, **options)
                except ValueError as error:
                    assert structures or str(error).startswith(f"{function} takes a list of "), error
                    assert f"s, but got {kind if given is not tensor else ''}" in str(error), error
                else:
                    raise AssertionError(f"{function} took {given!r}")
        assert front.number(hvd.grouped_allreduce([front.tensor([1.0])], op=hvd.Sum)[0]) == hvd.size()

    world.run(body)


@pytest.mark.needs("grouped")
def test_grouped_function_takes_what_yields_tensors(world):
    def body(front):
        hvd = front.hvd
        if not front.is_thorough:
            return
        for function, options in GROUPED.items():
            if not hasattr(hvd, function) or ("jax" in front.has and "async" not in function):
                continue
            minimum = {} if "gather" in function else {"op": hvd.Min}
            tensors = [front.tensor(np.full((hvd.size(), 2), number)) for number in (1, 2)]
            for given in ((each for each in tensors), dict(enumerate(tensors)).values()):
                outputs = getattr(hvd, function)(given, **options, **minimum)
                if "async" in function:
                    outputs = hvd.synchronize(outputs)
                assert [front.array(each)[0, 0] for each in outputs] == [1, 2], function

    world.run(body)


@pytest.mark.needs("process sets")
def test_process_set_of_wrong_type_in_calls_without_tensors(world):
    def body(front):
        hvd = front.hvd
        calls = [
            lambda: hvd.barrier(process_set=5),
            lambda: hvd.remove_process_set(5),
            lambda: hvd.broadcast_object(1, process_set=5),
            lambda: hvd.allgather_object(1, process_set=5),
        ]
        for call in calls:
            try:
                call()
            except ValueError as error:
                assert "process_set is 5, but should be a ProcessSet" in str(error), error
            else:
                raise AssertionError("5 was taken for a process set")

    world.run(body)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", [None, "a list"])
def test_list_in_place_of_a_tensor(world, name):
    """Only the user knows which type the elements should have."""

    def body(front):
        for wrong in ([1.0], None, "text", np.ones(1)):
            try:
                front.hvd.allreduce(wrong, name=name)
            except ValueError as error:
                assert "takes tensors of PyTorch" in str(error), error
            else:
                raise AssertionError(f"allreduce took {wrong}")

    world.run(body)
