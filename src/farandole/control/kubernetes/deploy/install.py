"""`farandole kubernetes install` and `uninstall`: applies the manifests to a cluster, or deletes their objects."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TextIO

from farandole.control.kubernetes.deploy import files, manifests
from farandole.control.kubernetes.deploy.manifests import Install, Manifest

# Seconds until a kind is served, or everything is gone.
_LIMIT = 60.0


def dry_run(install: Install, as_json: bool, out: TextIO) -> int:
    """Print the manifests that would be applied."""
    items = manifests.all_of(install)
    out.write(json.dumps(items, indent=2) + "\n" if as_json else files.as_yaml(items))
    return 0


def apply(install: Install, err: TextIO) -> int:
    """Apply everything by server-side apply; print the objects and the next steps."""
    code = asyncio.run(_apply(manifests.all_of(install), err))
    err.write(next_steps(install))
    return code


def next_steps(install: Install) -> str:
    """Return the next steps after an installation."""
    return (
        f"next: wait until the operator's pods are Ready: kubectl get pods -n {install.namespace}\n"
        f"      If they are not, the cluster may not be able to pull {install.image}; --image names another one.\n"
        "      Then kubectl apply -f JOB.yaml, or farandole submit --on kubernetes --image IMAGE python train.py\n"
    )


async def _apply(items: list[Manifest], err: TextIO) -> int:
    from farandole.control.kubernetes.deploy.cluster import Cluster

    async with Cluster() as cluster:
        for item in items:
            await cluster.apply(_for(item, await cluster.minor_version()))
            print(f"applied {item['kind']} {item['metadata']['name']}", file=err)
        kinds = [item for item in items if item["kind"] == "CustomResourceDefinition"]
        await asyncio.wait_for(cluster.served(kinds), _LIMIT)
    return 0


def _for(item: Manifest, minor: int) -> Manifest:
    """Return a manifest in the form that a server of version 1.`minor` accepts."""
    if item["kind"] == "PodDisruptionBudget" and minor < 21:
        return {**item, "apiVersion": "policy/v1beta1"}
    if item["kind"] == "CustomResourceDefinition" and minor < 25:
        # The operator checks these rules itself.
        without: Manifest = _without(item, "x-kubernetes-validations")
        return without
    return item


def _without(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(item, key) for name, item in value.items() if name != key}
    return [_without(item, key) for item in value] if isinstance(value, list) else value


def remove(install: Install, delete_jobs: bool, err: TextIO) -> int:
    """Delete everything that was applied; refuse that while there are jobs, unless they may also be deleted."""
    return asyncio.run(_remove(install, delete_jobs, err))


async def _remove(install: Install, delete_jobs: bool, err: TextIO) -> int:
    from farandole.control.kubernetes.deploy.cluster import Cluster

    async with Cluster() as cluster:
        jobs = await cluster.jobs()
        if jobs and not delete_jobs:
            shown = ", ".join(jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")
            print(f"error: this would also delete these jobs: {shown}", file=err)
            print("hint: wait for their end, or add --delete-jobs", file=err)
            return 1
        items: list[Any] = manifests.all_of(install)
        # The kinds first: while the operator runs, nothing prevents the deletion of jobs.
        order = [item for item in items if item["kind"] == "CustomResourceDefinition"]
        order += [item for item in reversed(items) if item not in order]
        for item in order:
            if await cluster.delete(_for(item, await cluster.minor_version())):
                print(f"deleted {item['kind']} {item['metadata']['name']}", file=err)
        await asyncio.wait_for(cluster.gone(order), _LIMIT)
    return 0
