"""The files under /etc/mpi in the pods of an MPIJob: host lists and scripts."""

from __future__ import annotations

from collections.abc import Iterable

from farandole.control.kubernetes import children
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.mpijob.job_spec import KUBEXEC, OPEN_MPI, MpiJobSpec

FOLDER = "/etc/mpi"
HOST_FILE, DISCOVERY, KUBEXEC_SCRIPT = "hostfile", "discover_hosts.sh", "kubexec.sh"
KUBECTL_FOLDER = "/opt/kube"


def launcher_name(job: Object) -> str:
    """Return the launcher's host name, which is the same for all attempts."""
    return f"{job['metadata']['name']}-launcher"


def launcher_account(job: Object, spec: MpiJobSpec) -> str:
    """Return the ServiceAccount of a launcher that uses kubexec: the template's, or else the job's own."""
    return str(spec.launcher.pod.get("serviceAccountName") or launcher_name(job))


def worker_name(job: Object, index: int) -> str:
    """Return the name of a worker's pod, which is also its host name."""
    return f"{job['metadata']['name']}-worker-{index}"


def service_name(job: Object) -> str:
    """Return the name of the Service in whose domain the host names resolve."""
    return children.service_name(job["metadata"]["name"])


def address(job: Object, spec: MpiJobSpec, host: str) -> str:
    """Return the name by which the launcher addresses a host: a pod for `kubectl exec`, a resolvable name for ssh."""
    if spec.remote_shell == KUBEXEC:
        return host
    return f"{host}.{service_name(job)}.{job['metadata']['namespace']}.svc"


def host_file(job: Object, spec: MpiJobSpec) -> str:
    """Return mpirun's host list: all hosts of the job, whether they run or not."""
    names = [launcher_name(job)] if spec.launcher_as_worker else []
    names += [worker_name(job, index) for index in range(spec.workers)]
    form = "{} slots={}\n" if spec.implementation == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(address(job, spec, name), spec.slots) for name in names)


def discovery_script(job: Object, spec: MpiJobSpec, ready: Iterable[int]) -> str:
    """Return the script of `--host-discovery-script`: it prints the hosts that are ready, with their slots."""
    names = [launcher_name(job)] if spec.launcher_as_worker else []
    names += [worker_name(job, index) for index in sorted(ready)]
    lines = [f"echo {address(job, spec, name)}:{spec.slots}\n" for name in names]
    return "#!/bin/sh\n" + "".join(lines)


def kubexec_script(spec: MpiJobSpec) -> str:
    """Return the remote shell of mpirun: `kubexec.sh POD COMMAND...`."""
    container = f" --container={spec.main_container}" if spec.main_container else ""
    return (
        "#!/bin/sh\n"
        "# A remote shell for mpirun and horovodrun: the first word is the pod, the others are a command line.\n"
        "# Standard input goes along, as with ssh.\n"
        "pod=$1\n"
        "shift\n"
        f"kubectl={KUBECTL_FOLDER}/kubectl\n"
        '[ -x "$kubectl" ] || kubectl=kubectl\n'
        f'exec "$kubectl" exec -i "$pod"{container} -- /bin/sh -c "$*"\n'
    )


def data(job: Object, spec: MpiJobSpec, ready: Iterable[int]) -> dict[str, str]:
    """Return the files of the job's ConfigMap."""
    files = {HOST_FILE: host_file(job, spec), DISCOVERY: discovery_script(job, spec, ready)}
    if spec.remote_shell == KUBEXEC:
        files[KUBEXEC_SCRIPT] = kubexec_script(spec)
    return files
