"""Names that Kubernetes and its users see: groups and kinds, labels, annotations, finished by what people's tools read.

The labels of mpi-operator, of all its versions, are on every pod of an MPIJob, because dashboards and scripts select by
them.
"""

from __future__ import annotations

GROUP = "farandole.dev"

OPERATOR = "farandole-operator"
"""Field manager of server-side apply, name of the Lease, and component that Events come from."""

# --- on everything that the operator makes -----------------------------------------------------------------------

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""The operator watches what has this label with the value OPERATOR, and nothing else."""

JOB_LABEL = f"{GROUP}/job"
"""Name of the job."""

KIND_LABEL = f"{GROUP}/kind"
"""Plural of the job's kind, such as mpijobs: two kinds may have jobs of the same name."""

ROLE_LABEL = f"{GROUP}/role"
"""On pods: launcher or worker."""

INDEX_LABEL = f"{GROUP}/index"
"""On pods of workers: which one, from 0."""

ATTEMPT_LABEL = f"{GROUP}/attempt"
"""On pods of launchers: which start of the job, from 0."""

HASH_ANNOTATION = f"{GROUP}/wanted"
"""Digest of an object as it was wanted, by which the operator sees that it has to be applied again."""

HOSTS_ANNOTATION = f"{GROUP}/hosts"
"""Digest of the host list, on the launcher's pod: a change makes the kubelet refresh its volumes at once."""

SUBMISSION_ANNOTATION = f"{GROUP}/submission"
"""The key of the submission that made an object: by it, a submission whose answer was lost finds its objects again."""

LAUNCHER = "launcher"
WORKER = "worker"

# --- what mpi-operator's users rely on -----------------------------------------------------------------------------

MPI_GROUP = "kubeflow.org"
MPI_OPERATOR = "mpi-operator"
MPI_MANAGER = f"{MPI_GROUP}/{MPI_OPERATOR}"
"""The value of an MPIJob's managedBy that means its usual operator, which this one takes the place of."""

TRAINING_OPERATOR_LABEL = "training.kubeflow.org/operator-name"
TRAINING_JOB_LABEL = "training.kubeflow.org/job-name"
TRAINING_ROLE_LABEL = "training.kubeflow.org/job-role"
TRAINING_INDEX_LABEL = "training.kubeflow.org/replica-index"
"""The place of a pod among those that have slots, from 0: a launcher with slots is the first. Kueue uses it."""
BATCH_JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")
"""On launchers' pods: what the pods of a batch Job have, as which mpi-operator's v2beta1 runs its launcher."""

APP_LABEL = "app"
"""On what is made for an MPIJob beside pods."""

# Of v1, and with underscores of v1alpha2.
MPI_V1_LABELS = ("group-name", "mpi-job-name", "mpi-job-role")
MPI_V1ALPHA2_LABELS = ("group_name", "mpi_job_name", "mpi_role_type")
