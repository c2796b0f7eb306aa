"""The operator's rights, and the purpose of each: the table from which roles and documentation are rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.control.kubernetes import names


@dataclass(frozen=True)
class Right:
    """One row of the table.

    Attributes:
        scope: "jobs": in all namespaces whose jobs are served; "own": in the operator's namespace; "cluster": on
            objects without a namespace.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    scope: str = "jobs"

    def rule(self) -> dict[str, Any]:
        """Return the rule in the form of a role."""
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


_READ = ("get", "list", "watch")
_RBAC = "rbac.authorization.k8s.io"

RIGHTS = (
    Right(names.MPI_GROUP, ("mpijobs",), (*_READ, "delete"), "run jobs; delete them after `ttlSecondsAfterFinished`"),
    Right(names.MPI_GROUP, ("mpijobs/status",), ("update",), "report their state"),
    Right(names.MPI_GROUP, ("mpijobs/finalizers",), ("update",), "set jobs as owners of pods (some clusters check it)"),
    Right(names.GROUP, ("trainingjobs",), (*_READ, "delete"), "run jobs; delete them after `ttlSecondsAfterFinished`"),
    Right(names.GROUP, ("trainingjobs/status",), ("update",), "report their state"),
    Right(names.GROUP, ("trainingjobs/finalizers",), ("update",), "the same"),
    Right(names.GROUP, ("queues",), _READ, "share workers among the jobs of a queue"),
    Right(names.GROUP, ("queues/status",), ("update",), "report how many jobs run and wait"),
    Right("", ("pods",), (*_READ, "create", "patch", "delete"), "start and end launchers and workers"),
    Right(
        "",
        ("pods/exec",),
        ("get", "create"),
        "grant it to launchers that use `kubexec`, each for its own workers; the operator itself never uses it",
    ),
    Right("", ("configmaps",), (*_READ, "create", "patch"), "host lists"),
    Right("", ("secrets",), ("create",), "create the keys of a job; it cannot read any"),
    Right("", ("services", "serviceaccounts"), (*_READ, "create", "patch"), "DNS names of pods; launcher's account"),
    Right("", ("persistentvolumeclaims",), ("get", "create", "patch"), "storage of a TrainingJob"),
    Right("", ("events",), ("create",), "report what happens to jobs"),
    Right(_RBAC, ("roles", "rolebindings"), (*_READ, "create", "patch"), "the launcher's right to its own workers"),
    Right("networking.k8s.io", ("networkpolicies",), (*_READ, "create", "patch"), "who may connect to a TrainingJob"),
    Right("scheduling.volcano.sh", ("podgroups",), (*_READ, "create", "patch", "delete"), "gang scheduling by Volcano"),
    Right(
        "scheduling.x-k8s.io",
        ("podgroups",),
        (*_READ, "create", "patch", "delete"),
        "gang scheduling by the coscheduling plugin",
    ),
    Right("coordination.k8s.io", ("leases",), ("get", "create", "update"), "elect the one operator that acts", "own"),
    Right("", ("nodes",), ("list",), "count the slots for queues that name a resource", "cluster"),
)


def rules(*scopes: str) -> list[dict[str, Any]]:
    """Return the rules of a role."""
    return [right.rule() for right in RIGHTS if right.scope in scopes]


def table() -> str:
    """Return the rights as a table of the documentation."""
    lines = ["| where | API group | resources | verbs | what for |", "|---|---|---|---|---|"]
    where = {"jobs": "namespaces of jobs", "own": "its own namespace", "cluster": "the cluster"}
    for right in RIGHTS:
        resources = ", ".join(f"`{name}`" for name in right.resources)
        group = f"`{right.group}`" if right.group else "core"
        lines.append(f"| {where[right.scope]} | {group} | {resources} | {', '.join(right.verbs)} | {right.why} |")
    return "\n".join(lines) + "\n"
