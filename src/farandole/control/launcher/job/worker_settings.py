"""What the user asks of the workers' settings, by flag or in a call: whether it can be, and how workers get it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farandole.base.settings.declaration import PREFIX, Setting, as_text
from farandole.base.settings.table import SETTINGS
from farandole.errors import SpecError

if TYPE_CHECKING:
    from farandole.control.launcher.job.spec import JobSpec


def check_settings(asked: Mapping[str, Any]) -> None:
    """Find out whether workers can use these values.

    Args:
        asked: values in the settings' own units, by the settings' names; those of `SETTINGS` only.

    Raises:
        SpecError: they cannot, or one does nothing without another.
    """
    for name, value in asked.items():
        row = SETTINGS[name]
        _check_value(row, value)
        if row.flag is not None and row.flag.needs and not asked.get(row.flag.needs):
            needed = SETTINGS[row.flag.needs].flag
            assert needed is not None
            raise SpecError(f"--{row.flag.name} {row.flag.alone}", f"add {needed.usage}")


def _check_value(row: Setting, value: Any) -> None:
    try:
        row.parse(as_text(value))
    except (ValueError, KeyError):
        hint = "" if row.flag is None else f"see --{row.flag.name} in farandole run --help"
        raise SpecError(f"{row.name} is {value!r}, but should be {row.expects}", hint) from None


def with_backend(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the same with the backend for which the launcher's environment asks, unless one is asked for.

    The launcher must know: it depends on the backend who can start the workers.

    Raises:
        SpecError: a variable names no backend.
    """
    row = SETTINGS["backend"]
    if asked.get("backend") is not None:
        return dict(asked)
    for variable in row.variables:
        if text := environment.get(variable):
            try:
                backend = row.parse(text)
            except ValueError:
                raise SpecError(f"{variable}={text}: it should be {row.expects}", "correct or unset it") from None
            return {**asked, "backend": backend} if backend != row.default else dict(asked)
    return dict(asked)


def with_metrics(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the same with the metrics for which the launcher's environment asks, unless they are asked for.

    The launcher must know: it serves those of the job, and says where each worker serves its own.

    Raises:
        SpecError: the variable names no place to serve them.
    """
    row = SETTINGS["metrics"]
    text = environment.get(row.variables[0])
    if asked.get("metrics") is not None or not text:
        return dict(asked)
    try:
        row.parse(text)
    except ValueError:
        raise SpecError(f"{row.variables[0]}={text}: it should be {row.expects}", "correct or unset it") from None
    return {**asked, "metrics": text}


def check_backend(spec: JobSpec, launcher: str | None) -> None:
    """Refuse a job whose workers MPI is to connect, but would not have started.

    Args:
        spec: what the user wants.
        launcher: the program that starts the workers; None: they are started by farandole.

    Raises:
        SpecError: it cannot work.
    """
    if spec.settings.get("backend") != "mpi":
        return
    if spec.elastic is not None:
        raise SpecError(
            "--backend mpi: an MPI world has a fixed set of processes and does not outlive one of them, so workers "
            "cannot come and go",
            "leave --backend mpi away, or the options of elastic jobs",
        )
    if launcher is None:
        raise SpecError(
            "--backend mpi: MPI connects only processes that it has started itself",
            "add --launcher mpirun (or srun), with the mpirun of that MPI on the PATH",
        )


def settings_environment(asked: Mapping[str, Any], directory: str) -> dict[str, str]:
    """Return the variables that tell workers what was asked for; all else is left to their environment.

    Args:
        asked: see `check_settings`.
        directory: of the job. A script may change its folder before init(), so paths are made absolute.
    """
    variables = {}
    for name, row in SETTINGS.items():
        if (value := asked.get(name)) is not None:
            text = os.path.join(directory, value) if row.is_path else as_text(value)
            variables[PREFIX + name.upper()] = text
    return variables
