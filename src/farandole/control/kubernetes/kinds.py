"""The kinds that the operator serves, jobs and queues: one row each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from farandole.control.kubernetes import names
from farandole.control.kubernetes.model import Observed, Outcome

Reconcile = Callable[[Observed], Outcome]


@dataclass(frozen=True)
class Kind:
    """A kind that is served.

    Attributes:
        version: the version that the operator reads and writes, and in which objects are stored.
        served: all versions in which users may write it.
        module: the module of its `reconcile`.
    """

    group: str
    version: str
    served: tuple[str, ...]
    kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    module: str

    @property
    def api_version(self) -> str:
        """Group and version that the operator reads and writes."""
        return f"{self.group}/{self.version}"

    @property
    def resource(self) -> str:
        """Name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    def reconcile(self) -> Reconcile:
        """Import and return its pure function `reconcile`."""
        function: Reconcile = importlib.import_module(self.module).reconcile
        return function


MPI_JOB = Kind(
    group=names.MPI_GROUP,
    version="v2beta1",
    served=("v1alpha2", "v1", "v2beta1"),
    kind="MPIJob",
    plural="mpijobs",
    singular="mpijob",
    short_names=("mj", "mpij"),
    module="farandole.control.kubernetes.mpijob.reconcile",
)
TRAINING_JOB = Kind(
    group=names.GROUP,
    version="v1alpha1",
    served=("v1alpha1",),
    kind="TrainingJob",
    plural="trainingjobs",
    singular="trainingjob",
    short_names=("tj",),
    module="farandole.control.kubernetes.training_job.reconcile",
)
QUEUE = Kind(
    group=names.GROUP,
    version="v1alpha1",
    served=("v1alpha1",),
    kind="Queue",
    plural="queues",
    singular="queue",
    short_names=("fq",),
    module="farandole.control.kubernetes.queues.reconcile",
)

KINDS = (MPI_JOB, TRAINING_JOB, QUEUE)
"""The kinds that are served."""
