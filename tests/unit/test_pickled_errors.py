"""Every exception class of the package survives `pickle`, `copy` and a process pool, with its text and attributes.

The classes are found in the source, so a new one is tested, too.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import inspect
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.control.jobs.status import JobState, JobStatus
from farandole.control.rewriting.refusal import NotUnderstood, Refusal

SOURCE = Path(farandole.__file__).parent
# They import their framework; their exceptions take what every exception takes.
WITH_FRAMEWORK = ("tensorflow", "mxnet")
EXAMPLES: dict[str, Any] = {
    "str": "a text",
    "str | None": "a word",
    "int": 7,
    "int | None": 3,
    "float | None": 2.5,
    "bool": True,
    "Sequence[Finding]": (),
    "JobStatus": JobStatus("wolf", JobState.FAILED, reason="boom"),
    "Sequence[Refusal]": (Refusal(3, "why", "what to do"),),
}


def classes() -> dict[str, ast.ClassDef]:
    """Return the exception classes of the package by `module:name`."""
    defined = {
        f"{'.'.join(file.relative_to(SOURCE.parent).with_suffix('').parts)}:{node.name}": node
        for file in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    known = {name for name, each in vars(builtins).items() if inspect.isclass(each) and issubclass(each, BaseException)}
    found: dict[str, ast.ClassDef] = {}
    while True:
        more = {
            place: node
            for place, node in defined.items()
            if place not in found and known.intersection(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        }
        if not more:
            return found
        found |= more
        known |= {node.name for node in more.values()}


CLASSES = classes()
PLACES = sorted(place for place in CLASSES if place.split(".")[1] not in WITH_FRAMEWORK)


def example(place: str) -> BaseException:
    """Return an exception of that class, with its attributes and a note."""
    module, name = place.split(":")
    kind = getattr(importlib.import_module(module), name)
    # Without a constructor of its own, it takes the text.
    constructor = next((vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)), None)
    if not inspect.isfunction(constructor):
        error: BaseException = kind("a text")
    else:
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        error = kind(*(EXAMPLES[each.annotation] for each in parameters))
    error.__notes__ = ["a note"]
    return error


def facts(error: BaseException) -> tuple[object, ...]:
    """Return what is to survive; `msg` and `name` are those of an ImportError."""
    text = getattr(error, "msg", None) or str(error)
    return type(error), str(error), error.args, vars(error), text, getattr(error, "name", None)


def test_all_classes_are_found() -> None:
    assert len(PLACES) > 50
    assert {"farandole.errors:NotInitializedError", "farandole.errors:JobFailed"} <= set(PLACES)
    for place, node in CLASSES.items():
        constructors = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        assert place in PLACES or not constructors, f"{place} takes arguments: test it"


@pytest.mark.parametrize("place", PLACES)
def test_it_survives_pickle_and_copy(place: str) -> None:
    error = example(place)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert facts(pickle.loads(pickle.dumps(error, protocol))) == facts(error)
    assert facts(copy.copy(error)) == facts(error)
    assert facts(copy.deepcopy(error)) == facts(error)


def test_attributes_of_more_than_text_survive() -> None:
    error = example("farandole.control.rewriting.refusal:NotUnderstood")
    assert isinstance(error, NotUnderstood)
    assert pickle.loads(pickle.dumps(error)).refusals == (Refusal(3, "why", "what to do"),)


def _raise(place: str) -> None:
    raise example(place)


def _text(place: str) -> str:
    """Return the text in the pool's process: that of an error may depend on what its process has imported."""
    return str(example(place))


def test_a_process_pool_passes_it_on() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for place in PLACES:
            expected = example(place)
            if not isinstance(expected, Exception):
                continue  # It would end the pool's process.
            with pytest.raises(type(expected)) as caught:
                pool.apply_async(_raise, (place,)).get(60)
            assert str(caught.value) == pool.apply_async(_text, (place,)).get(60)
