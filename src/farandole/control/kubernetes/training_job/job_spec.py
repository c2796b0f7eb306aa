"""Parses the spec of a TrainingJob: the keys of jobs in all places (`control.jobs.spec`), and those of Kubernetes.

The input may be anything: the result is a spec or a list of sentences, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from farandole.control.jobs.errors import BadSpec
from farandole.control.jobs.spec import JobSpec, Workers, from_dict
from farandole.control.kubernetes.field_reader import FieldReader, shown
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.pod_template import check_pod

MOST_WORKERS = 10_000
MOST_SLOTS = 64
# Pods are named JOB-worker-9999, and a pod's name is its host name here, which has 63 characters at most.
LONGEST_NAME = 63 - len("-launcher-9999")
ABSENCE_SECONDS = 600.0
NODE_LOSS_SECONDS = 30
CLAIM = "pvc:"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

KUBERNETES_KEYS = (
    "slotsPerPod",
    "template",
    "python",
    "suspend",
    "cancel",
    "managedBy",
    "priorityClassName",
    "tolerateSpot",
    "networkPolicy",
    "ship",
    "launcherAbsenceSeconds",
    "nodeLossSeconds",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "topologySpread",
    "keepTogether",
    "preferNodes",
)
"""The keys of a TrainingJob that other jobs do not have: in a job file, they are in `options.kubernetes`."""


@dataclass(frozen=True)
class TrainingJobSpec:
    """A TrainingJob's spec."""

    job: JobSpec
    slots: int = 1
    """Number of workers in a pod."""
    labels: Object = field(default_factory=dict)
    annotations: Object = field(default_factory=dict)
    """Annotations of the template for worker pods."""
    pod: Object = field(default_factory=dict)
    """The template's spec; without containers if only `image` is given."""
    python: str = "python3"
    """The Python interpreter of the image that has farandole."""
    suspend: bool = False
    cancel: bool = False
    priority_class: str = ""
    tolerate_spot: bool = False
    network_policy: bool = True
    ship: str = ""
    """Name of a ConfigMap with the code; "" if it is in the image."""
    ship_items: tuple[Object, ...] = ()
    """The file of each of its keys, in the form of volumes; empty if the keys are file names."""
    absence: float = ABSENCE_SECONDS
    """Seconds for which workers continue without a launcher."""
    node_loss: int = NODE_LOSS_SECONDS
    """Seconds of a node's silence after which its pods are deleted."""
    deadline: int | None = None
    ttl: int | None = None
    spread: str = ""
    """A label of nodes, such as a zone, over whose values worker pods are spread."""
    together: str = ""
    """A label of nodes, such as a rack: worker pods are preferably placed on nodes with the same value."""
    preferred_nodes: Object = field(default_factory=dict)
    """Labels of nodes, with values, that worker pods prefer."""
    nodes: tuple[str, ...] = ()
    """Nodes on which the job's queue has found slots for worker pods; not part of the spec itself."""

    @property
    def pods(self) -> int:
        """Number of wanted worker pods."""
        return -(-self.job.workers.replicas // self.slots)

    @property
    def least_pods(self) -> int:
        """Number of worker pods that the training needs to begin."""
        return -(-self.job.workers.min // self.slots)


def read(job: Object) -> tuple[TrainingJobSpec | None, list[str]]:
    """Return a job's spec, or None and sentences about its faults."""
    reader = FieldReader()
    spec = reader.mapping(job, "spec")
    shared = _shared(reader, spec)
    template = reader.mapping(spec, "template")
    pod = reader.mapping(template, "spec")
    metadata = reader.mapping(template, "metadata")
    read_spec = TrainingJobSpec(
        job=shared or JobSpec(("true",), Workers(1, 1, 1)),
        slots=reader.integer(spec, "slotsPerPod", 1, 1, MOST_SLOTS) or 1,
        labels=reader.texts(metadata, "labels", "template.metadata."),
        annotations=reader.texts(metadata, "annotations", "template.metadata."),
        pod=pod,
        python=reader.text(spec, "python", "python3"),
        suspend=reader.flag(spec, "suspend"),
        cancel=reader.flag(spec, "cancel"),
        priority_class=reader.text(spec, "priorityClassName"),
        tolerate_spot=reader.flag(spec, "tolerateSpot"),
        network_policy=reader.flag(spec, "networkPolicy", True),
        ship=_ship(reader, spec),
        ship_items=_ship_items(reader, spec),
        absence=float(reader.integer(spec, "launcherAbsenceSeconds", int(ABSENCE_SECONDS), 1) or ABSENCE_SECONDS),
        node_loss=reader.integer(spec, "nodeLossSeconds", NODE_LOSS_SECONDS, 0) or 0,
        deadline=reader.integer(spec, "activeDeadlineSeconds", None, 1),
        ttl=reader.integer(spec, "ttlSecondsAfterFinished", None, 0),
        spread=reader.text(spec, "topologySpread"),
        together=reader.text(spec, "keepTogether"),
        preferred_nodes=reader.texts(spec, "preferNodes"),
    )
    check_pod(reader, pod, "template.spec")
    _check_image(reader, read_spec)
    _check_name(reader, job)
    return (None, reader.faults) if reader.faults or shared is None else (read_spec, [])


def _shared(reader: FieldReader, spec: Object) -> JobSpec | None:
    """Parse the keys that jobs have in all places."""
    found = {str(key): value for key, value in spec.items() if key not in KUBERNETES_KEYS}
    try:
        shared = from_dict(found)
        shared.check()
    except BadSpec as error:
        reader.faults.append(f"{error.message} ({error.hint})" if error.hint else error.message)
        return None
    except (TypeError, ValueError, OverflowError) as error:  # Unchecked input may raise any of these.
        reader.faults.append(f"it cannot be read: {error}"[:300])
        return None
    if shared.workers.max > MOST_WORKERS:
        reader.faults.append(f"workers.max: {shared.workers.max} are more than {MOST_WORKERS}")
        return None
    return shared


def _ship(reader: FieldReader, spec: Object) -> str:
    name = reader.mapping(spec, "ship").get("configMap", "")
    if not isinstance(name, str):
        reader.faults.append(f"ship.configMap: {shown(name)} is not a name")
        return ""
    return name


def _ship_items(reader: FieldReader, spec: Object) -> tuple[Object, ...]:
    items = reader.mapping(spec, "ship").get("items") or []
    usable = isinstance(items, list) and all(
        isinstance(item, Mapping) and isinstance(item.get("key"), str) and isinstance(item.get("path"), str)
        for item in items
    )
    if not usable:
        reader.faults.append(f"ship.items: {shown(items)} is not a list of keys and paths")
        return ()
    return tuple({"key": item["key"], "path": item["path"]} for item in items)


def _check_image(reader: FieldReader, spec: TrainingJobSpec) -> None:
    containers = spec.pod.get("containers")
    if not spec.job.image and not containers:
        reader.faults.append("image: there is none, and no template with containers; set an image that has farandole")


def _check_name(reader: FieldReader, job: Object) -> None:
    metadata = job.get("metadata")
    name = str(metadata.get("name") if isinstance(metadata, Mapping) else "")
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        reader.faults.append(
            f"the name {name[:80]!r} is not valid for pods: use up to {LONGEST_NAME} small letters, digits and dashes"
        )
