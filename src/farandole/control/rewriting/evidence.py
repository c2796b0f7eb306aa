"""The parts of a script that are distributed already: averaged gradients, shared data, and equal initial states."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from farandole.control.rewriting.imports import imported, is_in
from farandole.control.rewriting.names import Names

_REDUCE = ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce", "grouped_allreduce_")


class Evidence:
    """The features of farandole that a script uses already.

    Attributes:
        uses_farandole: whether it imports farandole.
    """

    def __init__(self, script: Names) -> None:
        self._script = script
        self.uses_farandole = any(is_in("farandole", module) for module in imported(script.source.tree))

    def has(self, *names: str) -> bool:
        """Return whether the script uses one of these functions or classes of farandole."""
        return bool(self._uses(*names))

    def reduces_by_hand(self) -> bool:
        """Return whether the script passes gradients, by their name, to an allreduce."""
        return any(
            isinstance(call := self._script.source.parent(node), ast.Call)
            and any("grad" in self._script.source.of(each).lower() for each in call.args)
            for node in self._uses(*_REDUCE)
        )

    def shares_data(self) -> bool:
        """Return whether each worker gets a different part of the data, by farandole's functions or by its rank."""
        if self.has("shard", "ElasticLoader", "ElasticSampler"):
            return True
        if self._script.calls(lambda name: name.rpartition(".")[2] == "DistributedSampler"):
            return self.uses_farandole
        ranks = self._uses("rank")
        names = {name for node in ranks for name in self._names_given(node)}
        loads = [node for node in ast.walk(self._script.source.tree) if isinstance(node, ast.Name) and node.id in names]
        used = [node for node in loads if isinstance(node.ctx, ast.Load)]
        direct = [node for node in ranks if not self._names_given(node)]
        return any(not self._is_compared(node) for node in (*direct, *used))

    def _uses(self, *names: str) -> list[ast.expr]:
        found = [node for node in ast.walk(self._script.source.tree) if isinstance(node, ast.Name | ast.Attribute)]
        return [node for node in found if self._is_of_farandole(self._script.dotted(node), names)]

    def _is_of_farandole(self, dotted: str, names: Sequence[str]) -> bool:
        return is_in("farandole", dotted) and dotted.rpartition(".")[2] in names

    def _names_given(self, node: ast.expr) -> set[str]:
        """Return the names that the statement of an expression assigns to: `rank, size = hvd.rank(), hvd.size()`."""
        statement = self._script.source.statement(node)
        if not isinstance(statement, ast.Assign):
            return set()
        return {each.id for target in statement.targets for each in ast.walk(target) if isinstance(each, ast.Name)}

    def _is_compared(self, node: ast.expr) -> bool:
        """Return whether an expression is only part of a condition, as in `if hvd.rank() == 0`."""
        for each in self._script.source.above(node):
            if isinstance(each, ast.Compare | ast.BoolOp) or (
                isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not)
            ):
                return True
            if isinstance(each, ast.stmt):
                return isinstance(each, ast.If | ast.While)
        return False

    def is_of_one_rank(self, node: ast.AST) -> bool:
        """Return whether only some ranks reach a statement or expression, by a condition that names the rank."""
        conditions = [each.test for each in self._script.source.above(node) if isinstance(each, ast.If | ast.IfExp)]
        words = [self._script.source.of(test) for test in conditions]
        return self.uses_farandole and any("rank" in each for each in words)
