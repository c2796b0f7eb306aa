"""Wrong kinds of arguments are refused before the cluster is asked for anything."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

import farandole.ray
from farandole.compat.ray.elastic import RayHostDiscovery
from farandole.errors import SpecError
from farandole.ray import RayExecutor
from farandole.ray.data import DatasetSource
from farandole.ray.elastic_workers import ElasticParams, ElasticWorkers
from farandole.ray.settings import RaySettings


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of Ray is an error."""
    monkeypatch.setitem(sys.modules, "ray", None)


COUNTS = ["2", 2.0, 0, -1, [2]]
AMOUNTS = ["1", -1, math.nan, math.inf, None]
FLAGS = ["False", "no", "", [False]]
SHARED: list[tuple[str, list[Any]]] = [
    ("min_workers", COUNTS),
    ("max_workers", COUNTS),
    ("cpus_per_worker", AMOUNTS),
    ("elastic_timeout", ["600", None, 0, math.nan]),
    ("reset_limit", ["3", 1.5, -1]),
    ("cooldown_range", [5, (5,), ("1", "2"), (2, 1), (1, 2, 3), "12"]),
]


def each(rows: list[tuple[str, list[Any]]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in rows for value in values]


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        [
            *SHARED,
            ("fn", [None, 0.25]),
            ("args", [20, "folder"]),
            ("kwargs", [[1]]),
            ("gpus_per_worker", AMOUNTS),
            ("env", [5, {"A": None}]),
            ("callbacks", [print, [5]]),
            ("verbose", FLAGS),
        ]
    ),
)
def test_run_names_the_wrong_argument(name: str, value: Any) -> None:
    said = r"is not a function \(hint: " if name == "fn" else rf"{name}.* \(hint: .*"
    with pytest.raises(SpecError, match=said):
        farandole.ray.run(**{"fn": print, name: value})


@pytest.mark.parametrize(("name", "value"), each([*SHARED, ("use_gpu", FLAGS), ("override_discovery", FLAGS)]))
def test_elastic_executor_names_the_wrong_argument(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=rf"{name}.* \(hint: "):
        RayExecutor(RaySettings(), **{"min_workers": 1, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        [
            ("num_workers", COUNTS),
            ("num_hosts", COUNTS),
            ("num_workers_per_host", [*COUNTS, None]),
            ("cpus_per_worker", AMOUNTS),
            ("use_gpu", FLAGS),
            ("use_current_placement_group", FLAGS),
        ]
    ),
)
def test_executor_of_fixed_size_names_the_wrong_argument(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=rf"^{name}=.* \(hint: "):
        RayExecutor(RaySettings(), **{name: value})


@pytest.mark.parametrize("name", ["use_gpu", "override_discovery"])
def test_parameters_of_elastic_workers_are_checked(name: str) -> None:
    params = ElasticParams(**{name: "False"})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=rf"^{name}='False' is not True or False \(hint: "):
        ElasticWorkers(params, RaySettings())


@pytest.mark.parametrize("flag", [1, 0, None])
def test_numbers_and_none_are_flags(flag: Any) -> None:
    RayExecutor(RaySettings(), num_workers=1, use_gpu=flag, use_current_placement_group=flag)


@pytest.mark.parametrize("elastic", [False, True])
def test_gpus_that_are_not_a_number_are_refused(elastic: bool) -> None:
    size: dict[str, Any] = {"min_workers": 1} if elastic else {"num_workers": 1}
    with pytest.raises(SpecError, match=r"^gpus_per_worker='2' is not a number of GPUs"):
        RayExecutor(RaySettings(), use_gpu=True, gpus_per_worker="2", **size)  # type: ignore[arg-type]


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^settings=None is not .*RayExecutor\.create_settings\(\)"):
        RayExecutor(None, num_workers=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["timeout_s", "placement_group_timeout_s", "start_timeout", "elastic_timeout"])
def test_text_for_a_time_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=rf"^{name}='5' is not a number of seconds \(hint: "):
        RayExecutor.create_settings(**{name: "5"})


def test_discovery_that_is_missing_is_refused() -> None:
    with pytest.raises(SpecError, match=r"override_discovery=False needs .*settings\.discovery"):
        RayExecutor(RaySettings(), min_workers=1, override_discovery=False)


def test_interfaces_given_as_text_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^nics='eth0' is text .*nics=\['eth0'\]"):
        RayExecutor.create_settings(nics="eth0")


@pytest.mark.parametrize("nics", [5, ["eth0", 5], [None]])
def test_interfaces_that_are_not_texts_are_refused(nics: Any) -> None:
    with pytest.raises(SpecError, match=r"^nics=.* is not a list of network interfaces"):
        RayExecutor.create_settings(nics=nics)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"elastic": "no"}, "^elastic='no' is not True or False"),
        ({"discovery": ["host:2"]}, r"^discovery=.* cannot find hosts .*find_available_hosts_and_slots"),
        ({"ssh_identity_file": 5, "ssh_str": "key"}, "^ssh_identity_file=5 is not a path"),
        ({"ssh_identity_file": "/nowhere/key", "ssh_str": 12345}, "^ssh_str is a int, not text"),
    ],
)
def test_settings_of_wrong_kinds_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why) as error:
        RayExecutor.create_settings(**given)
    assert "12345" not in str(error.value), "a key is secret"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dataset": [1, 2]}, r"dataset must be a dataset of ray\.data, but is \[1, 2\]"),
        ({"seed": "7"}, "seed must be a whole number, but is '7'"),
        ({"window": 1.5}, r"window must be a whole number from 1 up, but is 1\.5"),
        ({"shuffle": "false"}, "shuffle must be True or False, but is 'false'"),
    ],
)
def test_wrong_arguments_of_a_source_of_rows_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DatasetSource(**{"dataset": None, **given})


@pytest.mark.parametrize("flag", FLAGS)
def test_discovery_refuses_what_is_no_flag(flag: Any) -> None:
    with pytest.raises(SpecError, match="use_gpu"):
        RayHostDiscovery(use_gpu=flag)


@pytest.fixture(params=[{"num_workers": 2}, {"min_workers": 2}], ids=["fixed", "elastic"])
def executor(request: pytest.FixtureRequest) -> RayExecutor:
    return RayExecutor(RaySettings(), **request.param)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"executable_cls": 5}, "5 is not a function"),
        ({"executable_cls": dict, "executable_args": 5}, "executable_args=5 is not a sequence"),
        ({"executable_cls": dict, "executable_kwargs": [1]}, r"executable_kwargs=\[1\] is not a dict"),
        ({"extra_env_vars": ["A"]}, "extra_env_vars is a list, not a mapping"),
    ],
)
def test_start_refuses_wrong_kinds(executor: RayExecutor, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        executor.start(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fn": 5}, "5 is not a function"),
        ({"args": 5}, "args=5 is not a sequence"),
        ({"kwargs": [1]}, r"kwargs=\[1\] is not a dict"),
        ({"callbacks": print}, "callbacks=.* is not a sequence of functions"),
    ],
)
def test_run_of_executor_refuses_wrong_kinds(executor: RayExecutor, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        executor.run(**{"fn": print, **wrong})
    if "fn" in wrong:
        for call in (executor.execute, executor.execute_single, executor.run_remote):
            with pytest.raises(SpecError, match=said):
                call(5)  # type: ignore[operator]
