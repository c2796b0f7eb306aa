"""`horovod.ray.strategy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["create_placement_group"]


def create_placement_group(
    resources_per_bundle: Mapping[str, float], num_bundles: int, pg_timeout: float, pg_strategy: str
) -> Any:
    """Create a placement group of equal bundles, and return it when it is ready.

    Args:
        resources_per_bundle: the resources of each bundle, by name.
        num_bundles: number of bundles.
        pg_timeout: seconds to wait.
        pg_strategy: `PACK`, `SPREAD`, `STRICT_PACK` or `STRICT_SPREAD`.

    Raises:
        TimeoutError: the resources are not available in time.
    """
    from ray.util import placement_group, remove_placement_group

    group = placement_group([dict(resources_per_bundle) for _ in range(num_bundles)], strategy=pg_strategy)
    if not group.wait(pg_timeout):
        remove_placement_group(group)
        raise TimeoutError(
            f"Ray did not have {num_bundles} times {dict(resources_per_bundle)} within {pg_timeout:g} s. Ask for less, "
            "or wait longer."
        )
    return group
