"""Sums of the resources that pods request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from farandole.control.jobs.quantity import quantity
from farandole.control.kubernetes.model import Object

Amounts = dict[str, Decimal]


def of_pods(pods: Iterable[tuple[int, Object]]) -> dict[str, str]:
    """Return the total requests of a number of pods of each spec, in the form of Kubernetes.

    A template may have any content: an invalid amount makes the result empty, and the API server explains its refusal.
    """
    total: Amounts = {}
    try:
        for count, body in pods:
            total = _sum([total, {name: count * amount for name, amount in _of_pod(body).items()}])
    except ValueError:
        return {}
    return {name: _written(amount) for name, amount in sorted(total.items())}


def amount(of: Any, name: str) -> Decimal:
    """Return the amount of a resource; 0 if it is not given."""
    try:
        return _amounts(of).get(name, Decimal(0))
    except ValueError:
        return Decimal(0)


def _of_pod(body: Object) -> Amounts:
    """Return the amounts that the scheduler reserves for a pod: those of its containers, or of a larger init container.

    An init container that is always restarted is a sidecar: it runs beside the containers, and beside later init
    containers.
    """
    sidecars: list[Amounts] = []
    most: list[Amounts] = []
    for each in _mappings(body.get("initContainers")):
        if each.get("restartPolicy") == "Always":
            sidecars.append(_of_container(each))
        else:
            most.append(_sum([_of_container(each), *sidecars]))
    most.append(_sum([*(_of_container(each) for each in _mappings(body.get("containers"))), *sidecars]))
    needed = {name: max(each.get(name, Decimal(0)) for each in most) for name in _names(*most)}
    return _sum([needed, _amounts(body.get("overhead"))])


def _of_container(container: Object) -> Amounts:
    resources = container.get("resources")
    if not isinstance(resources, Mapping):
        return {}
    # A limit without a request is also the request.
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _amounts(value: Any) -> Amounts:
    if not isinstance(value, Mapping):
        return {}
    found: Amounts = {}
    for name, written in value.items():
        amount = quantity(str(written))
        if amount is None:
            raise ValueError(f"{written!r} is not a valid amount")
        found[str(name)] = amount
    return found


def _sum(parts: list[Amounts]) -> Amounts:
    return {name: sum((part.get(name, Decimal(0)) for part in parts), Decimal(0)) for name in _names(*parts)}


def _names(*parts: Amounts) -> set[str]:
    return {name for part in parts for name in part}


def _mappings(value: Any) -> list[Object]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _written(amount: Decimal) -> str:
    if amount == amount.to_integral_value():
        return str(int(amount))
    return f"{int((amount * 1000).to_integral_value(ROUND_CEILING))}m"
