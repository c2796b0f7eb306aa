"""Jobs in files: YAML, of which JSON is a part. What is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.control.jobs.errors import BadSpec
from farandole.control.jobs.spec import JobSpec, from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_spec(path: Path, changes: Mapping[str, Any] | None = None) -> JobSpec:
    """Return the job that a file describes.

    Args:
        path: the file.
        changes: keys that the command line gives, which win over the file's.

    Raises:
        BadSpec: it cannot be read, or describes no job; the message names the line.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path} cannot be read: {error}", "check the path") from None
    return parse_spec(text, str(path), changes)


def parse_spec(text: str, where: str, changes: Mapping[str, Any] | None = None) -> JobSpec:
    """Return the job that a text describes; `where` is what it is called in errors.

    Raises:
        BadSpec: it describes none; the message names the line.
    """
    data, lines = _load(text, where)
    try:
        return from_dict({**data, **(changes or {})})
    except BadSpec as error:
        key = error.message.partition(":")[0]
        line = _line_of(key, lines)
        at = f"{where}, line {line}" if line else where
        raise BadSpec(f"{at}: {error.message}", error.hint) from None


def _load(text: str, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the data, and the line of each key: `workers.min` has one of its own."""
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise BadSpec(f"{where}: PyYAML, which reads such files, is not installed", "pip install PyYAML") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise BadSpec(f"{where}{at}: this is no YAML: {problem}", "such as: command: [python, train.py]") from None
    if not isinstance(data, dict):
        raise BadSpec(f"{where}, line 1: this describes no job", "keys and values, such as command: [python, train.py]")
    _check_circles(node, where, (), set())
    return data, _lines(node, "")


def _check_circles(node: Any, where: str, above: tuple[Any, ...], seen: set[int]) -> None:
    """See that nothing is a part of itself, as aliases allow it.

    Args:
        node: of the text.
        where: what the text is called.
        above: nodes that it is a part of.
        seen: those that are known to be right, by `id`: each is looked at once, however many aliases there are.

    Raises:
        BadSpec: something is.
    """
    if any(node is each for each in above):
        wrong = f"{where}, line {node.start_mark.line + 1}: this is a part of itself"
        raise BadSpec(wrong, "write it out, instead of the alias")
    if id(node) in seen or isinstance(node.value, str):
        return
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _check_circles(part, where, (*above, node), seen)
    seen.add(id(node))


def _lines(node: Any, prefix: str) -> dict[str, int]:
    import yaml

    lines: dict[str, int] = {}
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        lines[name] = key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode):
            lines.update(_lines(value, f"{name}."))
    return lines


def _line_of(key: str, lines: Mapping[str, int]) -> int | None:
    while key not in lines and "." in key:
        key = key.rpartition(".")[0]
    return lines.get(key)
