"""The source of every setting's value: flag, environment, project file or default, in this order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from farandole.base.settings.declaration import Setting
from farandole.base.settings.table import FLAGS, SETTINGS, Settings, descriptions
from farandole.control.launcher.configuration.project import Option, Project, values
from farandole.errors import SettingError

NOT_SET = "not set"
HIDDEN = "***"
_SECRET = re.compile(r"secret|token|password", re.IGNORECASE)


@dataclass(frozen=True)
class Provenance:
    """A setting, its value, and where that value comes from."""

    name: str
    side: Literal["worker", "launcher"]
    value: str
    source: str
    default: str
    description: str
    variables: tuple[str, ...] = ()
    """The environment variables of the setting; the first that is set counts."""
    option: str | None = None
    """The option of `farandole run`, with its dashes."""
    expects: str = ""
    problem: str = ""
    """The reason why this value cannot be used."""


@dataclass(frozen=True)
class Sources:
    """All sources of values of settings, except defaults."""

    environment: Mapping[str, str]
    options: Mapping[str, Option]
    """The options of `farandole run`, by name."""
    flags: Mapping[str, str]
    """Values given on a command line, by option."""
    project: Project | None


def provenances(sources: Sources) -> list[Provenance]:
    """Return every setting of workers, then every setting of the launcher alone."""
    workers = [_of_worker(row, sources) for row in SETTINGS.values()]
    return workers + [_of_launcher(option, sources) for name, option in sources.options.items() if _is_own(name)]


def _is_own(option: str) -> bool:
    return option not in FLAGS


def _of_worker(row: Setting, sources: Sources) -> Provenance:
    found = _found_for_worker(row, sources)
    text, source = found or (NOT_SET, "default")
    default = _default_text(row)
    problem = _problem(row.variables[0], text) if found else ""
    if _SECRET.search(row.name):
        text = HIDDEN if found else text
    return Provenance(
        name=row.name,
        side="worker",
        value=text if found else default,
        source=source,
        default=default,
        description=descriptions()[row.name],
        variables=row.variables,
        option=None if row.flag is None else f"--{row.flag.name}",
        expects=row.expects,
        problem=problem,
    )


def _found_for_worker(row: Setting, sources: Sources) -> tuple[str, str] | None:
    """Return the text that a worker will read, and where it comes from."""
    flag, project = row.flag, sources.project
    if flag is not None and flag.name in sources.flags:
        return _times(sources.flags[flag.name], flag.unit), f"flag --{flag.name}"
    for variable in row.variables:
        if sources.environment.get(variable):
            return sources.environment[variable], variable
    if project is None:
        return None
    if flag is not None and (text := _from_project(flag.name, sources, project)) is not None:
        return _times(text, flag.unit), f"{project.path.name} [run] {flag.name}"
    for variable in row.variables:
        if variable in project.environment:
            return project.environment[variable], f"{project.path.name} [env] {variable}"
    return None


def _from_project(option: str, sources: Sources, project: Project) -> str | None:
    if option not in project.run or option not in sources.options:
        return None
    texts = values(project, sources.options[option], project.run[option])
    return ",".join(texts) or None


def _times(text: str, factor: int) -> str:
    """Return a number in the setting's units; other text is left for the setting to reject."""
    return str(int(text) * factor) if factor != 1 and text.isdecimal() else text


def _of_launcher(option: Option, sources: Sources) -> Provenance:
    default = _text(option.default)
    value, source = default, "default"
    if option.name in sources.flags:
        value, source = sources.flags[option.name], f"flag --{option.name}"
    elif sources.project is not None and option.excludes.isdisjoint(sources.flags):
        text = _from_project(option.name, sources, sources.project)
        if text is not None:
            value, source = text, f"{sources.project.path.name} [run] {option.name}"
    return Provenance(
        name=option.name,
        side="launcher",
        value=HIDDEN if _SECRET.search(option.name) and value != default else value,
        source=source,
        default=default,
        description=option.description,
        option=f"--{option.name}",
        expects=f"one of {', '.join(option.choices)}" if option.choices else "",
    )


def _problem(variable: str, text: str) -> str:
    try:
        Settings.from_environment({variable: text})
    except SettingError as error:
        return str(error)
    return ""


def _default_text(row: Setting) -> str:
    """Return a default as it would be written; one that cannot be written is described by its meaning."""
    text = _text(row.default)
    return text if text == NOT_SET or not _problem(row.variables[0], text) else NOT_SET


def _text(value: object) -> str:
    if value is None or value in ("", b"", (), []):
        return NOT_SET
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def first_sentence(text: str) -> str:
    """Return the text before the first full stop or semicolon.

    Example:
        >>> first_sentence("Seconds of silence; 0 is never. More.")
        'Seconds of silence'
    """
    return re.split(r"[.;](?:\s|$)", text, maxsplit=1)[0]
