"""What pods ask for, added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from lightkube.utils.quantity import parse_quantity

from farandole.control.kubernetes.model import Object

Amounts = dict[str, Decimal]


def of_pods(pods: Iterable[tuple[int, Object]]) -> dict[str, str]:
    """Return what so many pods of each spec ask for together, as Kubernetes writes it.

    A template may be anybody's: what is no amount makes it empty, and the API server says why it refuses the pod.
    """
    total: Amounts = {}
    try:
        for count, body in pods:
            total = _sum([total, {name: count * amount for name, amount in _of_pod(body).items()}])
    except (ValueError, ArithmeticError):
        return {}
    return {name: _written(amount) for name, amount in sorted(total.items())}


def amount(of: Any, name: str) -> Decimal:
    """Return how much of a resource there is, 0 where that says nothing of it."""
    try:
        return _amounts(of).get(name, Decimal(0))
    except (ValueError, ArithmeticError):
        return Decimal(0)


def quantity(text: str) -> Decimal | None:
    """Return an amount as Kubernetes writes it, None if it is none."""
    try:
        found: Decimal | None = parse_quantity(text)
    except (ValueError, ArithmeticError):
        return None
    return found


def _of_pod(body: Object) -> Amounts:
    """Return what the scheduler keeps free for a pod: its containers together, or an initial one that needs more.

    An initial container that is always restarted is a sidecar: it runs beside the containers, and beside the initial
    ones that come after it.
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
    # Who says only a limit asks for as much.
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _amounts(value: Any) -> Amounts:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): parse_quantity(str(amount)) or Decimal(0) for name, amount in value.items()}


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
