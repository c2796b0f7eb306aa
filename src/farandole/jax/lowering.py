"""Converts a traced collective to a call of the plugin's handlers in XLA's program.

Order: the collectives of one function, loop body or branch are chained by XLA's tokens: they begin in the order in
which they were traced, one after the other, on all ranks. Names are assigned here: each place in a program has a unique
one, which depends on the program and not on what was traced before.

A worker that is alone gets a program without collectives, which XLA can fuse as if farandole were not used. In place of
each is a check that the worker is alone when the program runs; and `plugin` makes JAX drop such programs when the
worker enters a larger world. Elastic jobs, whose worlds grow while programs are used, always have the collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from farandole.errors import InvalidRequestError
from farandole.jax import plugin
from farandole.jax.call_site import SCOPE, CallSite
from farandole.worker.elastic.world_changes import is_elastic

_program_numbers = count(1)


@dataclass
class _Program:
    """The state of a program while it is lowered; it exists as long as the program."""

    number: int = field(default_factory=lambda: next(_program_numbers))
    given: dict[str, int] = field(default_factory=dict)

    def name(self, wanted: str) -> str:
        """Return a name that no other place in the program has."""
        before = self.given.get(wanted, 0)
        self.given[wanted] = before + 1
        return wanted if before == 0 else f"{wanted}#{before}"


def lower(context: mlir.LoweringRuleContext, *arrays: Any, site: CallSite, backend: str = "cpu") -> list[Any]:
    """Return the results of a collective in the program that is being built for a backend of JAX's."""
    plugin.used_backends.add(backend)
    _check_devices(context, site)
    wanted = f"{SCOPE}{site.operation}.{site.name or _module_name(context.module_context)}"
    if not is_elastic() and site.is_identity([aval.dtype for aval in context.avals_in]):
        plugin.alone.is_assumed = True
        attributes = _attributes(site, wanted, 0, backend, is_check=True)
        _call(context.replace(avals_in=[], avals_out=[]), [], attributes)
        return [_scaled(context, site, *each) for each in zip(arrays, context.avals_in, strict=True)]
    program = _program_of(context.module_context)
    return _call(context, arrays, _attributes(site, program.name(wanted), program.number, backend))


def _call(context: mlir.LoweringRuleContext, arrays: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    token_type = hlo.TokenType.get()
    call = jax.ffi.ffi_lowering(
        plugin.TARGET,
        # Other ranks wait for it: XLA must neither remove it nor merge it with its like.
        has_side_effect=True,
        result_types=[*(mlir.aval_to_ir_type(context.module_context, aval) for aval in context.avals_out), token_type],
    )
    # A token has the layout of a scalar.
    scalar = jax.core.ShapedArray((), np.bool_)
    extended = context.replace(avals_in=[*context.avals_in, scalar], avals_out=[*context.avals_out, scalar])
    results = call(extended, *arrays, _token_before(), **attributes)
    return list(results)[:-1]


def _scaled(context: mlir.LoweringRuleContext, site: CallSite, array: Any, aval: Any) -> Any:
    """Return an array times the factors of a reduction, one after the other, as in the engine."""
    for factor in (site.prescale, site.postscale):
        if factor != 1.0:
            constant = mlir.ir_constant(np.broadcast_to(np.asarray(factor, aval.dtype), aval.shape))
            array = hlo.multiply(array, constant)
    return array


def _check_devices(context: mlir.LoweringRuleContext, site: CallSite) -> None:
    axes = context.module_context.axis_context
    if getattr(axes, "num_devices", 1) not in (None, 1):  # Within shard_map, the context is another one.
        raise InvalidRequestError(
            f"{site.operation}: the arrays of this function are on several devices of this process, and each would "
            "have only a part of the array. Call the collective in jax.shard_map, which defines what each device "
            "does."
        )


def _program_of(module: Any) -> _Program:
    for each in module.keepalives:
        if isinstance(each, _Program):
            return each
    program = _Program()
    module.keepalives.append(program)
    return program


def _module_name(module: Any) -> str:
    return str(ir.StringAttr(module.module.operation.attributes["sym_name"]).value)


def _token_before() -> Any:
    """Return the token of the collective before this one in the same block, or a new one."""
    for operation in reversed(list(ir.InsertionPoint.current.block.operations)):
        if operation.name == "stablehlo.custom_call" and _target(operation) == plugin.TARGET:
            return operation.results[len(operation.results) - 1]
    return hlo.create_token()


def _target(operation: Any) -> str:
    return str(ir.StringAttr(operation.attributes["call_target_name"]).value)


def _attributes(site: CallSite, name: str, program: int, backend: str, *, is_check: bool = False) -> dict[str, Any]:
    """Return the attributes that native/plugins/jax/call_site.cc reads."""
    numbers = {
        "kind": site.kind,
        "grouped": site.grouped,
        "group": site.group,
        "root": site.root,
        "has_residuals": site.has_residuals,
        "only_at_root": site.only_at_root,
        "program": program,
        "is_check": is_check,
    }
    return {
        "name": name,
        "devices": " ".join(str(each.local_hardware_id) for each in jax.local_devices(backend=backend)),
        **{each: np.int64(number) for each, number in numbers.items()},
        **{f"option_{each}": np.float64(value) for each, value in site.options().items()},
    }
