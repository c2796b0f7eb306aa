"""The surroundings of this process: limits, kernel, container, and the job of a batch system."""

from __future__ import annotations

import re
import resource

from farandole.control.agent.inspect.facts import Kernel, Limit, Limits, Surroundings
from farandole.control.agent.inspect.hardware import process_limit
from farandole.control.agent.inspect.view import HostView, whole_number

# For each batch system: a variable that is set in its jobs, and those that describe the job.
_BATCH = {
    "slurm": (
        "SLURM_JOB_ID",
        ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"),
    ),
    "lsf": ("LSB_JOBID", ("LSB_JOBID", "LSB_DJOB_NUMPROC", "LSB_DJOB_HOSTFILE")),
    "pbs": ("PBS_JOBID", ("PBS_JOBID", "PBS_NODEFILE", "PBS_NUM_NODES", "PBS_NP")),
}
_BATCH_TOOLS = ("srun", "sbatch", "jsrun", "bsub", "qsub")

_INTERESTING = re.compile(
    r"(FARANDOLE|HOROVOD|NCCL|OMPI_MCA|UCX)_\w+|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)|OMP_NUM_THREADS"
)
_SECRET = re.compile(r"SECRET|TOKEN|PASS|KEY|CREDENTIAL", re.IGNORECASE)


def limits(view: HostView) -> Limits:
    """Return the limits that `ulimit` and the cgroup set."""
    return Limits(
        open_files=_limit(view, resource.RLIMIT_NOFILE),
        locked_bytes=_limit(view, resource.RLIMIT_MEMLOCK),
        processes=_limit(view, resource.RLIMIT_NPROC),
        file_bytes=_limit(view, resource.RLIMIT_FSIZE),
        address_bytes=_limit(view, resource.RLIMIT_AS),
        cgroup_processes=process_limit(view),
    )


def _limit(view: HostView, which: int) -> Limit:
    soft, hard = view.limit(which)
    return Limit(soft=soft, hard=hard)


def kernel(view: HostView) -> Kernel:
    """Return the features that the kernel allows this process."""
    seccomp = re.search(r"^Seccomp:\s*([0-9]+)$", view.quiet_text("/proc/self/status") or "", re.MULTILINE)
    return Kernel(
        trials=view.trials(),
        ptrace_scope=view.number("/proc/sys/kernel/yama/ptrace_scope"),
        seccomp=whole_number(seccomp[1]) if seccomp else None,
        user_namespaces=view.number("/proc/sys/user/max_user_namespaces"),
    )


def surroundings(view: HostView) -> Surroundings:
    """Return the container, the batch system and the relevant variables."""
    environment = view.environment
    batch = next((name for name, (sign, _) in _BATCH.items() if environment.get(sign)), None)
    described = _BATCH[batch][1] if batch else ()
    return Surroundings(
        container=_container(view),
        batch=batch,
        batch_job={name: environment[name] for name in described if name in environment},
        batch_tools=tuple(name for name in _BATCH_TOOLS if view.programs.path(name)),
        variables={
            name: "***" if _SECRET.search(name) else environment[name]
            for name in sorted(environment)
            if _INTERESTING.fullmatch(name)
        },
    )


def _container(view: HostView) -> str | None:
    """Return the kind of container, outermost layer first: a Kubernetes pod is also a containerd container."""
    if view.environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if view.environment.get("APPTAINER_CONTAINER") or view.environment.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if view.exists("/run/.containerenv"):
        return "podman"
    if view.exists("/.dockerenv"):
        return "docker"
    group = view.quiet_text("/proc/self/cgroup") or ""
    for sign, name in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc")):
        if re.search(rf"[/:]{sign}", group):
            return name
    return "container" if view.environment.get("container") else None
