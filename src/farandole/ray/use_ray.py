"""Importing Ray when it is needed."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from farandole.errors import SpecError

# Seconds that a wait for resources takes before it is announced.
_QUIET_SECONDS = 10.0


def use_ray() -> Any:
    """Return the module `ray`.

    Raises:
        SpecError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise SpecError("Ray is not installed", "pip install 'farandole[ray]'") from error
    return ray


def in_group(group: Any, bundle: int) -> Any:
    """Return the scheduling strategy for an actor in a placement group; bundle -1: any bundle."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=True
    )


def is_ready(group: Any, seconds: float, needed: str) -> bool:
    """Wait for the resources of a placement group, and return whether they have come in time.

    A wait that is not short is announced: the resources may never come.

    Args:
        group: the placement group.
        seconds: seconds to wait.
        needed: the resources, for the message.
    """
    if group.wait(min(seconds, _QUIET_SECONDS)):
        return True
    if seconds <= _QUIET_SECONDS:
        return False
    ray = use_ray()
    print(
        f"farandole: waiting up to {seconds:g} s for {needed}; of {ray.cluster_resources()}, "
        f"{ray.available_resources()} are free",
        file=sys.stderr,
        flush=True,
    )
    return bool(group.wait(seconds - _QUIET_SECONDS))


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that Ray is about to take away, as far as this version of Ray says so."""
    # This part of Ray is not public, and its errors, such as those of a head that restarts, have no common class. What
    # is missed is noticed by the next query or, as before, as the loss of a node.
    with contextlib.suppress(Exception):
        from ray._private.state import state

        return frozenset(state.get_draining_nodes())
    return frozenset()
