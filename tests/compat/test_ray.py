"""`horovod.ray`: names, signatures and defaults that Horovod's users rely on. Without Ray."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

from farandole.base.installed import own_environment

EXECUTOR = {
    "settings": inspect.Parameter.empty,
    "num_workers": None,
    "num_hosts": None,
    "num_workers_per_host": 1,
    "cpus_per_worker": 1,
    "use_gpu": False,
    "gpus_per_worker": None,
    "use_current_placement_group": True,
    "min_workers": None,
    "max_workers": None,
    "reset_limit": None,
    "cooldown_range": None,
    "elastic_timeout": 600,
    "override_discovery": True,
}
ELASTIC_SETTINGS = {
    "min_num_proc": 1,
    "max_num_proc": None,
    "reset_limit": None,
    "elastic_timeout": 600,
    "timeout_s": 30,
    "ssh_identity_file": "~/ray_bootstrap_key.pem",
    "nics": None,
    "min_np": None,
    "max_np": None,
}
START = dict.fromkeys(("executable_cls", "executable_args", "executable_kwargs", "extra_env_vars"))
REQUIRED = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("horovod.ray:RayExecutor", EXECUTOR),
        ("horovod.ray.runner:RayExecutor.start", START),
        ("horovod.ray:RayExecutor.run", {"fn": REQUIRED, "args": None, "kwargs": None, "callbacks": None}),
        ("horovod.ray:RayExecutor.run_remote", {"fn": REQUIRED, "args": None, "kwargs": None}),
        ("horovod.ray:RayExecutor.execute", {"fn": REQUIRED, "callbacks": None}),
        ("horovod.ray:RayExecutor.execute_single", {"fn": REQUIRED}),
        ("horovod.ray:RayExecutor.shutdown", {}),
        (
            "horovod.ray:RayExecutor.create_settings",
            {
                "timeout_s": 30,
                "ssh_identity_file": None,
                "ssh_str": None,
                "placement_group_timeout_s": 100,
                "nics": None,
            },
        ),
        ("horovod.ray:BaseHorovodWorker", {"world_rank": 0, "world_size": 1}),
        ("horovod.ray.worker:BaseHorovodWorker.execute", {"func": REQUIRED}),
        ("horovod.ray.worker:BaseHorovodWorker.update_env_vars", {"env_vars": REQUIRED}),
        ("horovod.ray.worker:BaseHorovodWorker.set_queue", {"queue": REQUIRED}),
        ("horovod.ray:ElasticRayExecutor.create_settings", ELASTIC_SETTINGS),
        (
            "horovod.ray.elastic:ElasticRayExecutor",
            {
                "settings": REQUIRED,
                "use_gpu": False,
                "cpus_per_slot": 1,
                "gpus_per_slot": None,
                "env_vars": None,
                "override_discovery": True,
            },
        ),
        ("horovod.ray:ElasticRayExecutor.start", {}),
        ("horovod.ray:ElasticRayExecutor.run", {"worker_fn": REQUIRED, "callbacks": None}),
        (
            "horovod.ray.elastic:RayHostDiscovery",
            {"use_gpu": False, "cpus_per_slot": 1, "gpus_per_slot": 1},
        ),
        (
            "horovod.ray.elastic_v2:RayHostDiscovery",
            {"use_gpu": False, "cpus_per_worker": 1, "gpus_per_worker": 1},
        ),
        (
            "horovod.ray.elastic:TestDiscovery",
            {
                **dict.fromkeys(("min_hosts", "max_hosts", "change_frequency_s"), REQUIRED),
                **{"use_gpu": False, "cpus_per_slot": 1, "gpus_per_slot": 1, "verbose": True},
            },
        ),
        (
            "horovod.ray.elastic_v2:ElasticParams",
            {
                "min_workers": 1,
                "max_workers": None,
                "reset_limit": None,
                "cooldown_range": None,
                "elastic_timeout": 600,
                "override_discovery": True,
                "cpus_per_worker": 1,
                "use_gpu": False,
                "gpus_per_worker": None,
            },
        ),
        (
            "horovod.ray.strategy:create_placement_group",
            dict.fromkeys(("resources_per_bundle", "num_bundles", "pg_timeout", "pg_strategy"), REQUIRED),
        ),
        ("horovod.ray.utils:map_blocking", {"fn": REQUIRED, "collection": REQUIRED}),
        ("horovod.ray.utils:nics_to_env_var", {"nics": REQUIRED}),
        (
            "horovod.ray.utils:detect_nics",
            {"settings": REQUIRED, "all_host_names": None, "node_workers": None},
        ),
        ("horovod.ray.ray_logger:log", {"info": REQUIRED}),
        ("horovod.ray.ray_logger:configure", {"queue": REQUIRED}),
        ("horovod.ray.runner:Coordinator", {"settings": REQUIRED}),
        (
            "horovod.ray:BaseHorovodWorker.start_executable",
            {"executable_cls": None, "executable_args": None, "executable_kwargs": None},
        ),
        *((f"horovod.ray:BaseHorovodWorker.{name}", {}) for name in ("node_id", "hostname", "get_gpu_ids", "env_vars")),
    ],
)
def test_signatures(where: str, expected: dict[str, Any]) -> None:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    parameters = inspect.signature(found).parameters
    named = {
        name: each.default
        for name, each in parameters.items()
        if name != "self" and each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert named == expected


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("runner", ("RayExecutor", "MiniSettings", "Coordinator")),
        ("elastic", ("ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery")),
        ("elastic_v2", ("RayHostDiscovery", "ElasticParams", "ElasticAdapter")),
        ("strategy", ("create_placement_group",)),
        ("adapter", ("Adapter",)),
        ("utils", ("detect_nics", "nics_to_env_var", "map_blocking")),
    ],
)
def test_names_of_modules(module: str, names: tuple[str, ...]) -> None:
    assert all(hasattr(importlib.import_module(f"horovod.ray.{module}"), name) for name in names)


def test_old_names_of_settings() -> None:
    from horovod.ray import ElasticRayExecutor
    from horovod.ray.runner import MiniSettings

    with pytest.warns(DeprecationWarning, match="min_num_proc"):
        settings = ElasticRayExecutor.create_settings(min_np=2, verbose=2)
    assert (settings.min_num_proc, settings.elastic, settings.verbose) == (2, True, 2)
    assert MiniSettings().timeout_s == 300


def test_settings_have_the_fields_that_scripts_read() -> None:
    from horovod.ray import RayExecutor

    settings = RayExecutor.create_settings(nics=["lo"])
    assert (settings.nics, settings.verbose) == (["lo"], 1)
    unset = ("key", "ssh_port", "ssh_identity_file", "start_timeout")
    assert [getattr(settings, name) for name in unset] == [None] * len(unset)


@pytest.mark.parametrize("given", [{"num_workers": 1, "num_hosts": 1}, {}])
def test_number_of_workers_is_given_in_one_way(given: dict[str, int]) -> None:
    from horovod.ray import RayExecutor

    with pytest.raises(AssertionError, match="num_hosts"):
        RayExecutor(RayExecutor.create_settings(), **given).start()


def test_calls_of_ranks_in_elastic_jobs_are_refused() -> None:
    from horovod.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1)
    for refused in (executor.run_remote, executor.execute_single):
        with pytest.raises(NotImplementedError, match="its workers come and go"):
            refused(print)


def test_coordinator_places_workers() -> None:
    from horovod.ray.runner import Coordinator, MiniSettings

    coordinator = Coordinator(MiniSettings())
    for rank, node in enumerate(["n", "n", "m"]):
        coordinator.register("10.0.0.1", node, rank)
    variables = coordinator.finalize_registration()
    assert coordinator.world_size == 3
    assert [variables[rank]["HOROVOD_LOCAL_SIZE"] for rank in range(3)] == ["2", "2", "1"]


def test_import_needs_no_ray() -> None:
    code = "import sys; sys.modules['ray'] = None; import farandole.ray, farandole.compat.ray; farandole.ray.run(print)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own_environment())
    assert "SpecError: Ray is not installed (hint: pip install 'farandole[ray]')" in done.stderr
