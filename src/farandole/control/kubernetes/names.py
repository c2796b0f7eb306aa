"""Names visible in Kubernetes: groups and kinds, labels, annotations, finalizers and fields that users' tools read.

The labels of all versions of mpi-operator are on every pod of an MPIJob, because dashboards and scripts select by them.
"""

from __future__ import annotations

GROUP = "farandole.dev"

OPERATOR = "farandole-operator"
"""Field manager of server-side apply, name of the Lease, and component of Events."""

# --- on all objects that the operator creates ------------------------------------------------------------------------

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""The operator watches only objects with this label and the value OPERATOR."""

JOB_LABEL = f"{GROUP}/job"
"""Name of the job."""

KIND_LABEL = f"{GROUP}/kind"
"""Plural of the job's kind, such as mpijobs: jobs of different kinds may have the same name."""

ROLE_LABEL = f"{GROUP}/role"
"""On pods: launcher or worker."""

INDEX_LABEL = f"{GROUP}/index"
"""On worker pods: the index, from 0."""

ATTEMPT_LABEL = f"{GROUP}/attempt"
"""On launcher pods: number of the job's start, from 0."""

HASH_ANNOTATION = f"{GROUP}/wanted"
"""Digest of the wanted object, by which the operator sees whether it must be applied again."""

HOSTS_ANNOTATION = f"{GROUP}/hosts"
"""Digest of the host list, on the launcher's pod: a change makes the kubelet refresh its volumes at once."""

SUBMISSION_ANNOTATION = f"{GROUP}/submission"
"""Key of the submission that created an object, by which a submission whose answer was lost finds its objects."""

LAUNCHER = "launcher"
WORKER = "worker"

# --- what mpi-operator's users rely on -----------------------------------------------------------------------------

MPI_GROUP = "kubeflow.org"
MPI_OPERATOR = "mpi-operator"
MPI_MANAGER = f"{MPI_GROUP}/{MPI_OPERATOR}"
"""The value of an MPIJob's managedBy that means its usual operator, which this one replaces."""

TRAINING_OPERATOR_LABEL = "training.kubeflow.org/operator-name"
TRAINING_JOB_LABEL = "training.kubeflow.org/job-name"
TRAINING_ROLE_LABEL = "training.kubeflow.org/job-role"
TRAINING_INDEX_LABEL = "training.kubeflow.org/replica-index"
"""The index of a pod among those with slots, from 0: a launcher with slots is the first. Kueue uses it."""
BATCH_JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")
"""On launcher pods: the labels of the pods of a batch Job, which is the launcher in mpi-operator's v2beta1."""

APP_LABEL = "app"
"""On the objects of an MPIJob other than pods."""

# Of v1, and with underscores of v1alpha2.
MPI_V1_LABELS = ("group-name", "mpi-job-name", "mpi-job-role")
MPI_V1ALPHA2_LABELS = ("group_name", "mpi_job_name", "mpi_role_type")
