"""The CustomResourceDefinitions of the kinds that the operator serves.

MPIJob is one definition with all versions. They have one schema, because the API server changes only the version of an
object between them. Only defaults differ, and an object keeps the defaults with which it was stored: the value of
`remoteShell` shows the operator that a job was written as `v1`.
"""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes.kinds import KINDS, MPI_JOB, QUEUE, TRAINING_JOB, Kind
from farandole.control.kubernetes.mpijob.job_spec import INTEL, KUBEXEC, MPICH, OPEN_MPI, SSH

Schema = dict[str, Any]

_FREE: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _text(about: str, *choices: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, **({"enum": list(choices)} if choices else {}), **more}


def _number(about: str, least: int = 0, **more: Any) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": least, "description": about, **more}


def _flag(about: str) -> Schema:
    return {"type": "boolean", "description": about}


def _object(properties: Schema, about: str = "", **more: Any) -> Schema:
    described = {"description": about} if about else {}
    return {"type": "object", **described, "properties": properties, **more}


# --- MPIJob ----------------------------------------------------------------------------------------------------------


def _policies() -> Schema:
    quantity = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    scheduling = {
        "minAvailable": _number("Pods that must start together; default: all."),
        "queue": _text("Queue of the gang scheduler."),
        "minResources": {"type": "object", "additionalProperties": quantity},
        "priorityClass": _text("PriorityClass of the PodGroup."),
        "scheduleTimeoutSeconds": _number("Seconds that the coscheduling plugin waits for the pods."),
    }
    return {
        "cleanPodPolicy": _text("Which workers are deleted when the job has ended.", "", "None", "Running", "All"),
        "backoffLimit": _number("Failures of launcher and workers after which the job fails; default: 6."),
        "activeDeadlineSeconds": _number("Seconds that the whole job may take.", 1),
        "ttlSecondsAfterFinished": _number("Seconds after the end of the job until it is deleted."),
        "suspend": _flag("Whether the job has no pods for now."),
        "managedBy": _text("Name of another controller that is responsible for the job."),
        "schedulingPolicy": _object(scheduling, "Options for a gang scheduler."),
    }


def _replica(about: str) -> Schema:
    return _object(
        {
            "replicas": _number("Number of pods."),
            "restartPolicy": _text("The restart policy of the pods.", "", "Always", "OnFailure", "Never", "ExitCode"),
            "template": _FREE,
        },
        about,
    )


def _mpi_spec(version: str) -> Schema:
    shell = SSH if version == MPI_JOB.version else KUBEXEC
    at_top = {name: schema for name, schema in _policies().items() if name != "schedulingPolicy"}
    return _object(
        {
            **at_top,
            "runPolicy": _object(_policies(), "Policies of the run; they override those at the top of the spec."),
            "slotsPerWorker": _number("Number of processes of a worker.", 1, default=1),
            "remoteShell": _text("How the launcher reaches workers.", SSH, KUBEXEC, default=shell),
            "mpiImplementation": _text("The MPI implementation of the images.", "", OPEN_MPI, INTEL, MPICH),
            "mpiDistribution": _text("The same in v1alpha2.", "", "open_mpi", "intel_mpi", "mpich"),
            "sshAuthMountPath": _text("Directory of the ssh keys."),
            "mainContainer": _text("The container of a worker that MPI runs in."),
            "runLauncherAsWorker": _flag("Whether the launcher's pod also has slots."),
            "waitForWorkers": _flag("Whether the launcher starts when all workers are ready."),
            "launcherCreationPolicy": _text("When the launcher starts.", "", "AtStartup", "WaitForWorkersReady"),
            "mpiReplicaSpecs": _object(
                {
                    "Launcher": _replica("The pod that runs mpirun or horovodrun."),
                    "Worker": _replica("The pods in which the launcher starts processes."),
                },
                "The pods.",
            ),
        },
        "The description of the job.",
        required=["mpiReplicaSpecs"],
    )


def mpi_job() -> Schema:
    """Return the definition of MPIJob."""
    columns = [
        _column("State", "string", ".status.state"),
        _column("Workers", "integer", ".status.replicaStatuses.Worker.active"),
        _column("Wanted", "integer", ".spec.mpiReplicaSpecs.Worker.replicas"),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    scale = {
        "specReplicasPath": ".spec.mpiReplicaSpecs.Worker.replicas",
        "statusReplicasPath": ".status.replicaStatuses.Worker.active",
        "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
    }
    return _definition(MPI_JOB, {version: _mpi_spec(version) for version in MPI_JOB.served}, columns, scale)


# --- TrainingJob -----------------------------------------------------------------------------------------------------


def _training_spec() -> Schema:
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    quantities = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
    workers = _object(
        {
            "min": _number("The minimum number with which the job can continue.", 1),
            "max": _number("The maximum number of workers that the job can use.", 1),
            "replicas": _number("The requested number, which kubectl scale and autoscalers change.", 1),
        },
        "Number of workers: min, max and replicas, which kubectl scale changes.",
        required=["min", "max", "replicas"],
    )
    # Servers before 1.25 ignore such rules: the operator checks the same.
    rule = "self.min <= self.replicas && self.replicas <= self.max"
    workers["x-kubernetes-validations"] = [{"rule": rule, "message": "replicas lie between min and max"}]
    return {
        **_object(
            {
                "command": {"type": "array", "items": {"type": "string"}, "description": "The command of a worker."},
                "workers": workers,
                "elastic": _flag("Whether workers may come and go; default: if min and max differ."),
                "image": _text("The image of worker pods, with farandole in it; or the template names one."),
                **_training_pods(),
                "environment": texts,
                "resources": quantities,
                "workingDirectory": _text("Working directory of the command; default: the image's own."),
                "checkpoint": _text("Place of the job's checkpoints: a claim, or a path of an object store."),
                "priority": {"type": "integer", "description": "Jobs with a higher priority come first."},
                "queue": _text("The queue that the job waits in."),
                "suspend": _flag("Whether the job has no pods for now."),
                "managedBy": _text("Name of another controller that is responsible for the job."),
                "retries": _number("How many times a failed job is started again."),
                "options": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
            "The description of the job.",
            required=["command", "workers"],
        ),
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _training_pods() -> Schema:
    """Return the fields of a TrainingJob in addition to those of jobs in all places: its pods, and their end."""
    items = {"type": "array", "items": _object({"key": _text("Of the ConfigMap."), "path": _text("Of the file.")})}
    return {
        "template": _FREE,
        "slotsPerPod": _number("Number of workers in a pod; default: 1.", 1),
        "python": _text("The Python interpreter of the image that has farandole; default: python3."),
        "cancel": _flag("Whether the job is cancelled."),
        "priorityClassName": _text("PriorityClass of all pods."),
        "tolerateSpot": _flag("Whether worker pods may run on nodes that may be reclaimed at any moment."),
        "networkPolicy": _flag("Whether only pods of the job may connect to its pods; default: true."),
        "ship": _object({"configMap": _text("Name of a ConfigMap with the code."), "items": items}, "Small code."),
        "topologySpread": _text("A label of nodes over whose values worker pods are spread."),
        "keepTogether": _text("A label of nodes: worker pods are put on nodes with the same value, if possible."),
        "preferNodes": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Labels, with values, of nodes that worker pods are put on if there is room.",
        },
        "launcherAbsenceSeconds": _number("Seconds that workers continue without a launcher; default: 600.", 1),
        "nodeLossSeconds": _number("Seconds after which pods of a silent node are deleted; default: 30."),
        "activeDeadlineSeconds": _number("Seconds that the whole job may take.", 1),
        "ttlSecondsAfterFinished": _number("Seconds after the end of the job until it is deleted."),
        "grace": {"type": "number", "minimum": 0, "description": "Seconds that workers have to leave; default: 30."},
    }


def training_job() -> Schema:
    """Return the definition of TrainingJob."""
    columns = [
        _column("State", "string", ".status.state"),
        _column("Workers", "integer", ".status.workers"),
        _column("Wanted", "integer", ".spec.workers.replicas"),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    scale = {
        "specReplicasPath": ".spec.workers.replicas",
        "statusReplicasPath": ".status.workers",
        "labelSelectorPath": ".status.selector",
    }
    return _definition(TRAINING_JOB, {TRAINING_JOB.version: _training_spec()}, columns, scale)


# --- Queue -----------------------------------------------------------------------------------------------------------


def queue() -> Schema:
    """Return the definition of Queue."""
    spec = _object(
        {
            "slots": _number("Workers that the queues of a tree share; only for one without a parent.", 1),
            "resource": _text("A resource of nodes, such as nvidia.com/gpu, that is counted instead of `slots`."),
            "resourcePerSlot": {
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "description": "Amount of the resource for each worker; default: 1.",
            },
            "nodes": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Labels, with values, of the nodes that are counted.",
            },
            "policy": _text("The scheduling policy: any that farandole simulate --policies lists."),
            "parent": _text("The queue above, in the same namespace."),
            "weight": {"type": "number", "exclusiveMinimum": True, "minimum": 0, "description": "Among its siblings."},
            "quota": _number("Workers that belong to it; queues that borrow them must return them."),
            "limit": _number("The maximum number of workers that it may have.", 1),
            "priority": {"type": "integer", "description": "Added to the priorities of its jobs."},
            "quantum": _seconds("Seconds of a time slice; default: 3600."),
            "ageing": _seconds("Seconds of waiting that raise the priority by one; default: 3600."),
            "round": _seconds("Seconds between two decisions of the adaptive policy; default: 60."),
            "restartCost": {"type": "number", "minimum": 0, "description": "Seconds that a change of workers costs."},
        },
        "The rules by which the workers are shared.",
    )
    columns = [
        _column("Policy", "string", ".spec.policy"),
        _column("Slots", "integer", ".spec.slots"),
        _column("Used", "integer", ".status.used"),
        _column("Running", "integer", ".status.running"),
        _column("Waiting", "integer", ".status.waiting"),
    ]
    return _definition(QUEUE, {QUEUE.version: spec}, columns)


def _seconds(about: str) -> Schema:
    return {"type": "number", "exclusiveMinimum": True, "minimum": 0, "description": f"Seconds. {about}"}


def definitions() -> list[Schema]:
    """Return the definitions of all kinds that are served."""
    known = {MPI_JOB.kind: mpi_job, TRAINING_JOB.kind: training_job, QUEUE.kind: queue}
    return [known[kind.kind]() for kind in KINDS]


# --- all -------------------------------------------------------------------------------------------------------------


def _definition(kind: Kind, specs: dict[str, Schema], columns: list[Schema], scale: Schema | None = None) -> Schema:
    scaled = {} if scale is None else {"scale": scale}
    versions = [
        {
            "name": version,
            "served": True,
            "storage": version == kind.version,
            "schema": {"openAPIV3Schema": _root(spec)},
            "subresources": {"status": {}, **scaled},
            "additionalPrinterColumns": columns,
        }
        for version, spec in specs.items()
    ]
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.singular,
        "shortNames": list(kind.short_names),
        "categories": ["all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {"group": kind.group, "names": names, "scope": "Namespaced", "versions": versions},
    }


def _root(spec: Schema) -> Schema:
    # A status is written by the operator, and has more fields than users need to know.
    return _object(
        {"apiVersion": _text(""), "kind": _text(""), "metadata": {"type": "object"}, "spec": spec, "status": _FREE}
    )


def _column(name: str, kind: str, path: str) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path}
