"""MPIJobs in the forms that are published: examples of mpi-operator, of clouds, of platforms and articles.

Each is written from scratch, and minimal. Its comment names the source of such jobs.
"""

from __future__ import annotations

import copy
from typing import Any

Job = dict[str, Any]
GPUS = {"limits": {"nvidia.com/gpu": 8}}


def container(name: str, command: list[str] | None = None, args: list[str] | None = None, **more: Any) -> Job:
    """Return a container; fields that are None are omitted."""
    given = {"name": name, "image": "example/mpi:1", "command": command, "args": args, **more}
    return {key: value for key, value in given.items() if value is not None}


def pod(*containers: Job, **spec: Any) -> Job:
    """Return a pod template."""
    return {"spec": {"containers": list(containers), **spec}}


def job(name: str, version: str, launcher: Job, worker: Job | None, replicas: int = 2, **spec: Any) -> Job:
    """Return an MPIJob; fields of `launcher` and `worker` other than the template are those of the replica."""
    specs: Job = {"Launcher": {"replicas": 1, **launcher}}
    if worker is not None:
        specs["Worker"] = {"replicas": replicas, **worker}
    return {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {**spec, "mpiReplicaSpecs": specs},
    }


MPIRUN = ["mpirun", "--allow-run-as-root", "-np", "2", "-bind-to", "none", "-map-by", "slot", "-x", "PATH"]
SSHD_OF_USER = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]
USER = {"securityContext": {"runAsUser": 1000}}
RUNNING = {"cleanPodPolicy": "Running"}
HOME_KEYS = "/home/mpiuser/.ssh"


def _jobs() -> list[Job]:
    return [
        # mpi-operator, examples/v2beta1/pi: of three implementations; Intel's has a `command:` without a value, and all
        # words in `args`.
        job(
            "pi",
            "v2beta1",
            {"template": pod(container("mpi-launcher", ["mpirun"], ["-n", "2", "/home/mpiuser/pi"], **USER))},
            {"template": pod(container("mpi-worker", SSHD_OF_USER[:1], SSHD_OF_USER[1:], **USER))},
            slotsPerWorker=1,
            runPolicy={**RUNNING, "ttlSecondsAfterFinished": 60},
            sshAuthMountPath=HOME_KEYS,
        ),
        *(
            job(
                f"pi-{implementation.lower()}",
                "v2beta1",
                {"template": pod(container("mpi-launcher", None, ["mpirun", "-n", "2", "/home/mpiuser/pi"], **USER))},
                {"template": pod({**container("mpi-worker", None, SSHD_OF_USER, **USER), "command": None})},
                slotsPerWorker=1,
                runPolicy=RUNNING,
                sshAuthMountPath=HOME_KEYS,
                mpiImplementation=implementation,
            )
            for implementation in ("Intel", "MPICH")
        ),
        # mpi-operator, examples/v2beta1/tensorflow-benchmarks: no command of workers, and GPUs.
        job(
            "tensorflow-benchmarks",
            "v2beta1",
            {"template": pod(container("tensorflow-benchmarks", [*MPIRUN, "python", "tf_cnn_benchmarks.py"]))},
            {"template": pod(container("tensorflow-benchmarks", resources={"limits": {"nvidia.com/gpu": 1}}))},
            slotsPerWorker=1,
            runPolicy=RUNNING,
        ),
        # mpi-operator, examples/v2beta1/nccl-tests, and AWS's of EFA: a restart policy in the template, which does not
        # hold; memory as /dev/shm; huge pages; no token; an annotation field without a value.
        job(
            "nccl-tests",
            "v2beta1",
            {
                "template": pod(
                    container(
                        "nccl",
                        ["/bin/bash", "-c"],
                        ["mpirun -np 16 /opt/nccl_tests/build/all_reduce_perf -b 8 -e 16G"],
                        securityContext={"privileged": True},
                        env=[{"name": "OMPI_ALLOW_RUN_AS_ROOT", "value": "1"}],
                    ),
                    restartPolicy="OnFailure",
                    enableServiceLinks=False,
                    automountServiceAccountToken=False,
                )
            },
            {
                "template": {
                    "metadata": {"annotations": None},
                    **pod(
                        container(
                            "nccl",
                            resources={"limits": {"nvidia.com/gpu": 8, "hugepages-2Mi": "5120Mi", "memory": "32000Mi"}},
                            volumeMounts=[{"name": "shmem", "mountPath": "/dev/shm"}],
                        ),
                        volumes=[{"name": "shmem", "hostPath": {"path": "/dev/shm"}}],
                    ),
                }
            },
            slotsPerWorker=8,
            runPolicy={**RUNNING, "backoffLimit": 20, "activeDeadlineSeconds": 666},
        ),
        # Host networks, as for InfiniBand and RoCE on Azure and Oracle; a variable of Open MPI in the template.
        job(
            "rdma",
            "v2beta1",
            {
                "template": pod(
                    container("launcher", MPIRUN, env=[{"name": "OMPI_MCA_plm_rsh_args", "value": "-p 2222"}]),
                    hostNetwork=True,
                    dnsPolicy="ClusterFirst",
                )
            },
            {
                "template": pod(
                    container("worker", securityContext={"capabilities": {"add": ["IPC_LOCK"]}}, resources=GPUS),
                    hostNetwork=True,
                    dnsConfig={"searches": ["storage.local"], "options": [{"name": "ndots", "value": "2"}]},
                    nodeSelector={"agentpool": "ib"},
                )
            },
            slotsPerWorker=8,
        ),
        # The launcher is a worker as well: mpi-operator's own tests, and jobs of one pod.
        job(
            "both",
            "v2beta1",
            {"template": pod(container("launcher", MPIRUN, resources=GPUS))},
            {"template": pod(container("worker", resources=GPUS))},
            slotsPerWorker=8,
            runLauncherAsWorker=True,
            launcherCreationPolicy="WaitForWorkersReady",
        ),
        job("alone", "v2beta1", {"template": pod(container("launcher", MPIRUN))}, None, runLauncherAsWorker=True),
        # Nothing but a launcher: mpirun starts everything beside itself.
        job("single", "v2beta1", {"template": pod(container("launcher", MPIRUN))}, None),
        # DeepSpeed on MPIJobs: tolerations, and a command without mpirun.
        job(
            "deepspeed",
            "v2beta1",
            {
                "template": pod(
                    container("deepspeed", ["deepspeed"], ["train.py", "--deepspeed_config", "ds.json", "$@"])
                )
            },
            {
                "template": pod(
                    container("deepspeed", resources={"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": 16}}),
                    tolerations=[{"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}],
                )
            },
            slotsPerWorker=1,
            runPolicy=RUNNING,
        ),
        # GROMACS of an AWS workshop: an initial container, and a claim; a name as long as its two workers allow.
        job(
            "g" * (63 - len("-launcher")),
            "v2beta1",
            {
                "template": pod(
                    container("launcher", ["/bin/sh", "-c"], ["mpirun gmx_mpi"]),
                    initContainers=[container("init", ["cp", "-r", "/inputs", "/data"])],
                    volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "fsx-pvc"}}],
                )
            },
            {"template": pod(container("worker"))},
            slotsPerWorker=48,
            runPolicy=RUNNING,
        ),
        # v1, as it was in mpi-operator (policies at the top) and in training-operator (in runPolicy): kubexec.
        job(
            "tensorflow-mnist-elastic",
            "v1",
            {
                "template": pod(
                    container(
                        "mpi-launcher",
                        ["horovodrun"],
                        ["-np", "2", "--host-discovery-script", "/etc/mpi/discover_hosts.sh", "python", "train.py"],
                        resources={"limits": {"cpu": 1, "memory": "2Gi"}},
                    )
                )
            },
            {"template": pod(container("mpi-worker", resources={"limits": {"cpu": 2, "memory": "4Gi"}}))},
            slotsPerWorker=1,
            cleanPodPolicy="Running",
        ),
        job(
            "horovod-mnist",
            "v1",
            {"restartPolicy": "OnFailure", "template": pod(container("mpi", MPIRUN))},
            # Without a command, what stands in args is no command either: mpi-operator lets such workers wait.
            {"restartPolicy": "Never", "template": pod(container("mpi", None, ["--help"]))},
            slotsPerWorker=2,
            runPolicy={**RUNNING, "backoffLimit": 3, "ttlSecondsAfterFinished": 3600},
        ),
        # A launcher of v1 that has GPUs is a worker.
        job(
            "gpu-launcher",
            "v1",
            {"template": pod(container("mpi", MPIRUN, resources={"limits": {"aliyun.com/gpu-mem": 8}}))},
            {"template": pod(container("mpi", resources=GPUS))},
            slotsPerWorker=4,
        ),
        # v1alpha2 of articles, with a sidecar that a service mesh adds, and Intel MPI by its old name.
        job(
            "mnist",
            "v1alpha2",
            {"template": pod(container("mpi-launcher", ["mpirun"], ["-np", "2", "python", "mnist.py"]))},
            {"template": pod(container("istio-proxy", ["proxy"]), container("mpi-worker", [""]))},
            slotsPerWorker=1,
            mainContainer="mpi-worker",
            mpiDistribution="intel_mpi",
            cleanPodPolicy="Running",
        ),
        # Kueue's users: suspended when they are made.
        job(
            "queued",
            "v2beta1",
            {"template": pod(container("mpi-launcher", ["mpirun"], ["-n", "2", "pi"], **USER))},
            {"template": pod(container("mpi-worker", SSHD_OF_USER, **USER))},
            slotsPerWorker=1,
            runPolicy={**RUNNING, "suspend": True},
            sshAuthMountPath=HOME_KEYS,
        ),
    ]


def public_jobs() -> dict[str, Job]:
    """Return the jobs by name."""
    return {each["metadata"]["name"]: copy.deepcopy(each) for each in _jobs()}
