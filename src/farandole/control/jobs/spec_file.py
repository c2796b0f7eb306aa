"""Job files in YAML, of which JSON is a subset. Errors name the line."""

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
        changes: keys from the command line, which override those of the file.

    Raises:
        BadSpec: the file cannot be read, or is not a valid job; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path} cannot be read: {getattr(error, 'strerror', error)}", "check the path") from None
    return parse_spec(text, str(path), changes)


def parse_spec(text: str, where: str, changes: Mapping[str, Any] | None = None) -> JobSpec:
    """Return the job that a text describes.

    Args:
        text: YAML or JSON.
        where: name of the text in errors.
        changes: keys from the command line, which override those of the text.

    Raises:
        BadSpec: the text is not a valid job; the message names the line.
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
    """Return the data, and the line of each key, nested keys such as `workers.min` included."""
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise BadSpec(f"{where}: PyYAML is needed to read it, and is not installed", "pip install PyYAML") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise BadSpec(f"{where}{at}: invalid YAML: {problem}", "such as: command: [python, train.py]") from None
    if not isinstance(data, dict):
        raise BadSpec(f"{where}, line 1: this is not a mapping", "keys and values, such as command: [python, train.py]")
    _check_circles(node, where, (), set())
    return data, _lines(node, "")


def _check_circles(node: Any, where: str, above: tuple[Any, ...], seen: set[int]) -> None:
    """Check that no node contains itself through aliases.

    Args:
        node: the node to check.
        where: name of the text in errors.
        above: the nodes that contain it.
        seen: `id` of each node that was checked; each is visited once, however many aliases refer to it.

    Raises:
        BadSpec: a node contains itself.
    """
    if any(node is each for each in above):
        wrong = f"{where}, line {node.start_mark.line + 1}: this contains itself"
        raise BadSpec(wrong, "write the value out instead of the alias")
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
