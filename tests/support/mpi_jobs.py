"""Typical MPIJobs, one of each version."""

from __future__ import annotations

import copy
from typing import Any

V1ALPHA2: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1alpha2",
    "kind": "MPIJob",
    "metadata": {"name": "mnist"},
    "spec": {
        "slotsPerWorker": 1,
        "cleanPodPolicy": "Running",
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "image": "horovod",
                                "name": "mpi-launcher",
                                "command": ["mpirun"],
                                "args": ["-np", "2", "python", "/examples/mnist.py"],
                                "resources": {"limits": {"cpu": 1, "memory": "2Gi"}},
                            }
                        ]
                    }
                },
            },
            "Worker": {
                "replicas": 2,
                "template": {"spec": {"containers": [{"command": [""], "image": "horovod", "name": "mpi-worker"}]}},
            },
        },
    },
}

V2BETA1: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {"name": "pi"},
    "spec": {
        "slotsPerWorker": 2,
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 2},
        "sshAuthMountPath": "/home/mpiuser/.ssh",
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "image": "pi",
                                "name": "mpi-launcher",
                                "securityContext": {"runAsUser": 1000},
                                "command": ["mpirun", "-n", "4", "/home/mpiuser/pi"],
                            }
                        ]
                    }
                },
            },
            "Worker": {
                "replicas": 2,
                "template": {
                    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
                    "spec": {
                        "containers": [
                            {
                                "image": "pi",
                                "name": "mpi-worker",
                                "securityContext": {"runAsUser": 1000},
                                "command": ["/usr/sbin/sshd"],
                                "args": ["-De", "-f", "/home/mpiuser/.sshd_config"],
                            }
                        ]
                    },
                },
            },
        },
    },
}


def v1alpha2() -> dict[str, Any]:
    """Return a job in the form that articles publish."""
    return copy.deepcopy(V1ALPHA2)


def v2beta1(**policy: Any) -> dict[str, Any]:
    """Return a job of the latest version, with a longer run policy."""
    job = copy.deepcopy(V2BETA1)
    job["spec"]["runPolicy"] |= policy
    return job
