"""Rewrites a script: detects its framework, and makes it distributed."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from farandole.control.rewriting import jax_script, keras_script, tensorflow_script, torch_script
from farandole.control.rewriting.imports import imported
from farandole.control.rewriting.refusal import NotUnderstood, Refusal
from farandole.control.rewriting.script import ON_TORCH, Script
from farandole.control.rewriting.source import ScriptSource


class Rewritten(NamedTuple):
    """The result of rewriting a script."""

    before: str
    after: str
    framework: str
    """`torch`, `tensorflow`, `keras` or `jax`; "" for a script that was distributed already."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about the result."""

    def diff(self, name: str) -> str:
        """Return the changes as a unified diff of a file called `name`."""
        before, after = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        lines = difflib.unified_diff(before, after, name, f"{name} (distributed)")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


_KINDS: dict[str, tuple[str, Callable[[Script], None]]] = {
    "torch": (torch_script.PACKAGE, torch_script.rewrite),
    "tensorflow": (tensorflow_script.PACKAGE, tensorflow_script.rewrite),
    "keras": (keras_script.PACKAGE, keras_script.rewrite),
    "jax": (jax_script.PACKAGE, jax_script.rewrite),
}


def rewrite(text: str, keep_batch: bool = False) -> Rewritten:
    """Make a script for one process, or a partly distributed one, distributed. The script is not executed.

    Args:
        text: text of the script.
        keep_batch: whether to divide the size of a batch by the number of workers, so that the batch of all workers
            together stays as large.

    Raises:
        NotUnderstood: some places cannot be rewritten; the error has the line, the reason and the next step of each.
    """
    source = ScriptSource(text)
    framework = _framework(source, set(imported(source.tree)))
    package, edit = _KINDS[framework]
    script = Script(source, package, keep_batch)
    edit(script)
    script.check()
    if script.evidence.has("init") and not source.is_edited:
        return Rewritten(text, text, "")
    after = script.finish()
    compile(after, "the result", "exec", dont_inherit=True)  # An edit that breaks a script is a bug, seen here.
    return Rewritten(text, after, framework, tuple(script.notes))


def _framework(source: ScriptSource, modules: set[str]) -> str:
    roots = {module.partition(".")[0] for module in modules}
    methods = {node.attr for node in _attributes(source)}
    if "fit" in methods and roots & {"keras", "tensorflow", "tf_keras"} and "GradientTape" not in methods:
        return "keras"
    if "tensorflow" in roots:
        return "tensorflow"
    if roots & {"torch", *ON_TORCH}:
        return "torch"
    if "jax" in roots:
        return "jax"
    raise NotUnderstood(
        [Refusal(1, "it imports none of torch, tensorflow, keras and jax", "pass the script that trains")]
    )


def _attributes(source: ScriptSource) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute))
