"""Arbitrary MPIJobs: an outcome, no exception, and no hot loop."""

from __future__ import annotations

import random
from typing import Any

import pytest
from mpi_jobs import v1alpha2, v2beta1
from mutations import mutated
from played_cluster import PlayedCluster

from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.mpijob.reconcile import reconcile

OBJECTS = 10_000


def full() -> dict[str, Any]:
    """Return a job that uses all fields, and has a status with a history."""
    scheduling = {"minAvailable": 1, "queue": "q", "minResources": {"cpu": 1}, "scheduleTimeoutSeconds": 5}
    policy = {"ttlSecondsAfterFinished": 100, "activeDeadlineSeconds": 1000, "schedulingPolicy": scheduling}
    job = v2beta1(**policy)
    job["spec"] |= {"mainContainer": "mpi-worker", "mpiImplementation": "Intel", "launcherCreationPolicy": "AtStartup"}
    played = PlayedCluster(job, reconcile, Options(gang_scheduler="volcano"))
    played.start()
    played.end("pi-worker-0", code=1)
    played.settle()
    job["status"] = played.observed().job["status"]
    return job


@pytest.mark.parametrize("first", range(0, OBJECTS, 2500))
def test_mutated_jobs_have_an_outcome(first: int) -> None:
    sources = [v1alpha2(), v2beta1(), full()]
    for seed in range(first, first + 2500):
        rng = random.Random(seed)
        job = mutated(rng.choice(sources), rng)
        # The API server has a schema, and these have passed it.
        job |= {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}
        try:
            played = PlayedCluster(job, reconcile, Options(gang_scheduler=rng.choice(["", "volcano"])))
            assert played.settle(6).again_at is None or played.decide().again_at > played.now  # type: ignore[operator]
        except Exception as error:
            raise AssertionError(f"seed {seed}: {job}") from error
