"""Edits that are the same for all frameworks: imports, the start of the job, and actions of rank 0 only."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from farandole.control.rewriting.evidence import Evidence
from farandole.control.rewriting.imports import is_in, modules_of
from farandole.control.rewriting.names import Names, place
from farandole.control.rewriting.refusal import NotUnderstood, Refusal
from farandole.control.rewriting.source import ScriptSource

RANK_0 = "hvd.rank() == 0"

_AS_IT_IS = "it runs unchanged under farandole run"
_REMOVE = "remove it, and run farandole init again"
_LIGHTNING = "Lightning distributes it by a strategy: see docs/how-to/lightning.md"
_OTHERS = {
    "accelerate": ("accelerate", f"{_AS_IT_IS}: see docs/how-to/accelerate.md"),
    "deepspeed": ("DeepSpeed", _REMOVE),
    "horovod": ("Horovod", f"{_AS_IT_IS}, if the package farandole-horovod is installed"),
    "jax.distributed": ("jax.distributed", _REMOVE),
    "lightning": ("Lightning", _LIGHTNING),
    "pytorch_lightning": ("Lightning", _LIGHTNING),
    "ray": ("Ray", _REMOVE),
    "torch.distributed": ("torch.distributed", f"{_AS_IT_IS}: see docs/how-to/torch_distributed.md"),
    "torch.nn.parallel": ("torch.nn.parallel", f"{_AS_IT_IS}: see docs/how-to/torch_distributed.md"),
}
ON_TORCH = ("accelerate", "lightning", "pytorch_lightning", "transformers")
"""Libraries that train with PyTorch: a script may import them and not torch."""
_SAMPLERS = "torch.utils.data.distributed"
"""A module of torch.distributed that farandole's workers may use."""
_WRITERS = ("torch.save", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "pickle.dump")
_WRITING_METHODS = ("save", "save_weights", "save_model", "savefig", "to_csv", "write_text", "write_bytes")


class Script(Names):
    """A script that is being rewritten.

    A script may be partly distributed: existing parts stay unchanged, and only missing ones are added.

    Attributes:
        source: text and syntax of the script.
        notes: sentences for the user about the result.
        keeps_batch: whether the batch of all workers together stays as large as the script's batch.
        evidence: the parts of the script that are distributed already.

    Args:
        source: text and syntax of the script.
        package: farandole's package that it will import, such as `farandole.torch`.
        keeps_batch: whether the batch of all workers together stays as large as the script's batch.

    Raises:
        NotUnderstood: another library distributes the script.
    """

    def __init__(self, source: ScriptSource, package: str, keeps_batch: bool = False) -> None:
        super().__init__(source)
        self.notes: list[str] = []
        self.keeps_batch = keeps_batch
        self._package = package
        self._refusals: list[Refusal] = []
        self.evidence = Evidence(self)
        self._imports_hvd = is_in("farandole", self.aliases.get("hvd", ""))
        self._imports: list[str] = []
        self._begin: list[str] = []
        self._touched: list[ast.AST] = []
        self._refuse_others()

    # --- refusals ----------------------------------------------------------------------------------------------------

    def refuse(self, where: ast.AST | None, reason: str, by_hand: str) -> None:
        """Record a place that cannot be rewritten."""
        line = 1 if where is None else where.lineno  # type: ignore[attr-defined]
        if not any(each.line == line for each in self._refusals):
            self._refusals.append(Refusal(line, reason, by_hand))

    def note(self, sentence: str) -> None:
        """Add a note for the user about the result, unless it is there already."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def check(self) -> None:
        """Check that no place was refused.

        Raises:
            NotUnderstood: a place cannot be rewritten.
        """
        if self._refusals:
            raise NotUnderstood(self._refusals)

    def _refuse_others(self) -> None:
        for node in ast.walk(self.source.tree):
            for module in modules_of(node):
                for prefix, (name, by_hand) in _OTHERS.items():
                    if is_in(prefix, module) and not is_in(_SAMPLERS, module):
                        self.refuse(node, f"it uses {name} already", by_hand)
        for call in self.calls(_is_trainer_of_transformers):
            self.refuse(call, "transformers' Trainer distributes it", f"{_AS_IT_IS}: see docs/how-to/transformers.md")
        self.check()  # Other problems do not matter: the script is not changed.
        hvd = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.Name) and node.id == "hvd"]
        if hvd and not self._imports_hvd:
            self.refuse(hvd[0], "the name hvd is in use", "rename it, then try again")

    # --- edits -------------------------------------------------------------------------------------------------------

    def touch(self, node: ast.AST) -> None:
        """Record a node at which the result uses `hvd`."""
        self._touched.append(node)

    def add_import(self, line: str) -> None:
        """Add an import."""
        if line not in self._imports:
            self._imports.append(line)

    def add_at_begin(self, *lines: str) -> None:
        """Add lines right after `hvd.init()`."""
        self._begin += lines

    def divide_batch(self, size: ast.expr | None) -> None:
        """Divide the size of a batch by the number of workers, if `keeps_batch`."""
        if size is not None and self.keeps_batch:
            self.touch(size)
            is_simple = isinstance(size, ast.Constant | ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            self.source.around(
                size, "max(1, " if is_simple else "max(1, (", f"{'' if is_simple else ')'} // hvd.size())"
            )

    def finish(self) -> str:
        """Add the import and the beginning, let only rank 0 print and write, and return the new text.

        Raises:
            NotUnderstood: a place cannot be rewritten.
        """
        if self.evidence.uses_farandole and not self._imports_hvd:
            self.refuse(None, "it imports farandole under another name", f"write: import {self._package} as hvd")
        begun = self.calls(lambda name: is_in("farandole", name) and name.endswith(".init"))
        if begun:
            self._let_rank_0_speak(None)
            self._write_with_rank_0()
            self.check()
            self._insert_after_imports(self._last_import(), self._imports)
            if self._begin:
                self.source.insert_after(self.source.statement(begun[0]), *self._begin)
            return self.source.result()
        guard = self._guard()
        if guard is not None and any(_is_in_module(self.source, node, guard) for node in self._touched):
            guard = None
        self._let_rank_0_speak(guard)
        self._write_with_rank_0()
        self.check()
        imports = self._imports if self._imports_hvd else [*self._imports, "", f"import {self._package} as hvd"]
        begin = ["hvd.init()", *self._begin]
        last = self._last_import()
        if guard is None:
            self._insert_after_imports(last, [*imports, "", *begin])
        else:
            self._insert_after_imports(last, imports)
            self.source.insert_before(guard.body[0], *begin)
        return self.source.result()

    def _insert_after_imports(self, last: ast.stmt | None, lines: list[str]) -> None:
        if not lines:
            return
        if last is not None:
            self.source.insert_after(last, *lines, *([] if self.source.is_followed_by_blank(last) else [""]))
        elif self.source.tree.body:
            self.source.insert_before(self.source.tree.body[0], *lines)

    def _last_import(self) -> ast.stmt | None:
        last = None
        for statement in self.source.tree.body:
            if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(statement)) and not isinstance(
                statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                if not _is_guard(statement):
                    last = statement
        return last

    def _guard(self) -> ast.If | None:
        found = [statement for statement in self.source.tree.body if _is_guard(statement)]
        guard = found[0] if len(found) == 1 else None
        return guard if isinstance(guard, ast.If) and self.source.begins_its_line(guard.body[0]) else None

    # --- what only rank 0 does ---------------------------------------------------------------------------------------

    def _let_rank_0_speak(self, guard: ast.If | None) -> None:
        speaking = [
            statement
            for statement in ast.walk(self.source.tree)
            if isinstance(statement, ast.Expr)
            and self._is_output(statement.value)
            and not self.evidence.is_of_one_rank(statement)
            and not (guard is not None and _is_in_module(self.source, statement, guard))
            and (guard is not None or self._comes_after_begin(statement))
        ]
        for statement in speaking:
            if self._trains(statement):
                self.refuse(
                    statement,
                    "it trains inside a call of print, which only rank 0 would make",
                    "assign the result to a name in a line of its own, and print that",
                )
        for run in _runs(self.source, sorted(speaking, key=place)):
            if all(self.source.begins_its_line(each) for each in run) and not any(map(_has_long_text, run)):
                self.source.put_below(run, f"if {RANK_0}:")
            else:
                for each in run:
                    self.source.around(each, "", f" if {RANK_0} else None")

    def _trains(self, statement: ast.AST) -> bool:
        """Return whether a statement, or a function of the script that it calls, uses collectives."""
        functions = {each.name: each for each in ast.walk(self.source.tree) if isinstance(each, ast.FunctionDef)}
        reached: set[ast.AST] = set()
        waiting: list[ast.AST] = [statement]
        while waiting:
            for node in ast.walk(waiting.pop()):
                called = functions.get(node.id) if isinstance(node, ast.Name) else None
                if called is not None and called not in reached:
                    reached.add(called)
                    waiting.append(called)
        touched = set(self._touched)
        return any(node in touched for each in (statement, *reached) for node in ast.walk(each))

    def _comes_after_begin(self, statement: ast.stmt) -> bool:
        """Return whether a statement is executed after `hvd.init()`, which is inserted below the imports."""
        last = self._last_import()
        return self.source.function(statement) is not None or last is None or statement.lineno > last.lineno

    def _is_output(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call):
            return False
        name = self.dotted(value.func)
        if name in ("print", *_WRITERS):
            return True
        # `torch.save` has been looked for by its full name; `model.save` is a method of something that is a variable.
        is_method = isinstance(value.func, ast.Attribute) and value.func.attr in _WRITING_METHODS
        return is_method

    def _write_with_rank_0(self) -> None:
        for call in self.calls(lambda name: name == "open"):
            mode = call.args[1] if len(call.args) > 1 else argument(call, "mode")
            if (
                self.evidence.is_of_one_rank(call)
                or not isinstance(mode, ast.Constant)
                or not isinstance(mode.value, str)
            ):
                continue
            if set(mode.value) & set("wax+"):
                self.refuse(
                    call,
                    "every worker would write this file",
                    f"put the lines that open and write it below `if {RANK_0}:`, after the imports and hvd.init(); "
                    "or use pathlib's write_text",
                )
        for call in self.calls(lambda name: name.rpartition(".")[2] == "SummaryWriter"):
            if self.evidence.is_of_one_rank(call):
                continue
            self.refuse(call, "every worker would write events for TensorBoard", f"make and use it only if {RANK_0}")
        for call in self.calls(lambda name: name in ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.trange")):
            if argument(call, "disable") is None:
                self.touch(call)
                self.source.append_argument(call, "disable=hvd.rank() != 0")


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a call's keyword argument; None: there is none."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """Return a call's keyword argument with its name; None: there is none."""
    return next((each for each in call.keywords if each.arg == name), None)


def names_in(node: ast.AST) -> set[str]:
    """Return the names that an expression uses."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_in_module(source: ScriptSource, node: ast.AST, guard: ast.If) -> bool:
    """Return whether a node is executed when the module is imported."""
    above = list(source.above(node))
    return guard not in above and not any(isinstance(each, ast.FunctionDef | ast.Lambda) for each in above)


def _is_guard(statement: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and "__name__" in names_in(statement.test) and not statement.orelse


def _runs(source: ScriptSource, statements: Sequence[ast.stmt]) -> list[list[ast.stmt]]:
    """Return statements in groups that directly follow each other."""
    runs: list[list[ast.stmt]] = []
    for statement in statements:
        block = source.block(statement)
        at = block.index(statement)
        if runs and at and runs[-1][-1] is block[at - 1]:
            runs[-1].append(statement)
        else:
            runs.append([statement])
    return runs


def _has_long_text(statement: ast.stmt) -> bool:
    """Return whether a node contains a string of several lines, which must not be indented."""
    texts = (ast.Constant, ast.JoinedStr)
    return any(isinstance(each, texts) and each.end_lineno != each.lineno for each in ast.walk(statement))


def _is_trainer_of_transformers(name: str) -> bool:
    return is_in("transformers", name) and name.endswith("Trainer")
