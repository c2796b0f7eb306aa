"""What the declarations say, and what is rendered from them."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import farandole
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import FORMS, Form, Required
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.collectives.plain_memory import Block, PlainMemory
from farandole.worker.collectives.render import docstring, functions
from farandole.worker.collectives.rows import own_rows, rows_to_send
from farandole.worker.core import binding
from farandole.worker.core.dtype import DType


def test_forms_name_their_functions():
    assert [form.function("x") for form in FORMS] == [
        "x",
        "x_async",
        "x_",
        "x_async_",
        "grouped_x",
        "grouped_x_async",
        "grouped_x_",
        "grouped_x_async_",
    ]


def test_each_form_of_each_collective_is_rendered():
    rendered = functions(PlainMemory(), "somewhere")
    assert sorted(rendered) == sorted(
        form.function(collective.name) for collective in COLLECTIVES.values() for form in collective.forms()
    )
    assert "broadcast_async_" in rendered and "grouped_broadcast" not in rendered and "allgather_" not in rendered


def test_a_rendered_function_looks_as_if_written_by_hand():
    broadcast = functions(PlainMemory(), "somewhere")["broadcast"]
    signature = inspect.signature(broadcast)
    assert list(signature.parameters) == ["tensor", "root_rank", "name", "process_set"]
    assert signature.parameters["root_rank"].default is inspect.Parameter.empty
    assert signature.parameters["name"].default is None
    assert (broadcast.__name__, broadcast.__module__) == ("broadcast", "somewhere")
    with pytest.raises(TypeError, match=r"broadcast\(\) missing 1 required positional argument: 'root_rank'"):
        broadcast(Block(DType.U8, (1,)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'average'"):
        broadcast(Block(DType.U8, (1,)), 0, average=True)
    assert inspect.getsource(broadcast).startswith("def broadcast(tensor, root_rank, name=_name,")
    assert broadcast.__code__.co_filename.startswith(str(Path(farandole.__file__).parent))  # See observe.code_location.


@pytest.mark.parametrize("name", COLLECTIVES)
def test_docstrings_explain_every_argument(name):
    """Every argument is explained, no line is too long, and no placeholder is left."""
    collective = COLLECTIVES[name]
    for form in collective.forms():
        text = docstring(collective, form, PlainMemory())
        assert "{" not in text and max(map(len, text.splitlines())) <= 116
        if form == Form():
            assert all(f"    {parameter.name}: " in text for parameter in collective.parameters)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_engine_has_every_option(name):
    kinds = {row["name"]: row["kinds"] for row in json.loads(binding.load().farandole_options())}
    for parameter in COLLECTIVES[name].parameters:
        assert parameter.option is None or COLLECTIVES[name].kind in kinds[parameter.option]
        assert parameter.option or parameter.name in ("name", "compression", "process_set", "average", "splits")
        assert parameter.default is not Required or parameter.name in ("compression", "process_set", "root_rank")


def test_result_shapes_follow_from_the_input():
    def shape(name, *given, size=3, position=0):
        return COLLECTIVES[name].result_shape(given, size, position)

    assert shape("allreduce", 2, 3) == shape("broadcast", 2, 3) == (2, 3)
    assert [shape("reducescatter", 7, 2, position=position) for position in range(3)] == [(3, 2), (2, 2), (2, 2)]
    assert shape("allgather", 7, 2) == shape("alltoall", 7, 2) == (None, 2)


def test_first_ranks_own_the_rows_that_are_left_over():
    assert [own_rows(7, 3, rank) for rank in range(3)] == [3, 2, 2]
    assert [own_rows(2, 3, rank) for rank in range(3)] == [1, 1, 0]


def test_rows_to_send_are_the_splits_or_equal_shares():
    assert rows_to_send(None, 6, 3) == [2, 2, 2]
    assert rows_to_send(None, 0, 3) == [0, 0, 0]
    assert rows_to_send([1, 0, 2], 3, 3) == [1, 0, 2]
    assert rows_to_send([1, 0], 3, 2) == [1, 0]
    assert rows_to_send(iter((1, 2)), 3, 2) == [1, 2]


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (None, "splits not provided, but first dimension of tensor (3)"),
        ([1, 3], "Sum of splits entries is greater than the first dimension of tensor"),
        ([1], "Number of entries in splits does not equal number of workers"),
        ([-1, 2], "negative"),
        (3, "alltoall expects a 1D splits tensor"),
    ],
)
def test_wrong_splits_are_refused(splits, words):
    with pytest.raises(InvalidRequestError) as caught:
        rows_to_send(splits, 3, 2)
    assert words in str(caught.value)


def test_smallest_front_end_has_the_abstract_methods_only():
    assert {name for name in FrontEnd.__abstractmethods__} == {
        name for name, member in vars(PlainMemory).items() if inspect.isfunction(member)
    }


def test_no_framework_is_loaded():
    script = """
import sys
import farandole.worker.collectives.render, farandole.worker.collectives.objects
assert not {"torch", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_new_option_needs_its_parameter_only():
    """Signature, docstring and request follow from it; here one that the engine has and no declaration names.

    The functions are those of a world of one, so what the engine says of the option has come all the way.
    """
    script = """
import inspect
import json
from dataclasses import replace

import numpy as np

import farandole.numpy as hvd
from farandole.errors import FarandoleError
from farandole.worker.collectives.declaration import FORMS, Parameter
from farandole.worker.collectives.forms import Forms, synchronize
from farandole.worker.collectives.render import docstring, render_function
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.numpy.arrays import Arrays

allreduce = COLLECTIVES["allreduce"]
option = Parameter("where", "int", 0, "which memory it lies in.", "memory")
collective = replace(allreduce, parameters=(*allreduce.parameters, option))
hvd.init()
front = Arrays()
for form in FORMS:
    function = render_function(front, Forms(front).runner(collective, form), "somewhere", collective, form)
    assert inspect.signature(function).parameters["where"].default == 0

    def call(*where):
        tensors = [np.ones(3, np.float32), np.ones((), np.int64)] if form.grouped else np.ones(3, np.float32)
        result = function(tensors, op=hvd.Sum, prescale_factor=2.0, **dict(zip(["where"], where)))
        result = synchronize(result) if form.later else result
        return [array.tolist() for array in result] if form.grouped else result.tolist()

    assert call() == call(0) == ([[2.0] * 3, 2] if form.grouped else [2.0] * 3), form
    for number, words in ((1, "driver"), (7, "there is no kind of memory with number 7")):
        try:
            call(number)
        except FarandoleError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{form} does not pass the option on")
assert "    where: which memory it lies in." in docstring(collective, FORMS[0], front)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
