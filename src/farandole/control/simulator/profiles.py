"""Reads profiles: measured step times and convergence runs of applications, from a directory or a tar archive.

    apps/<app>/placements-<type>.csv    placement, local_bsz, step_time, sync_time
    apps/<app>/scalability-<type>.csv   num_nodes, num_replicas, local_bsz, step_time, sync_time
    apps/<app>/validation-<batch>.csv   progress, grad_sqr, grad_var: a row for each epoch
    apps/<app>/constants.csv            restart, slowdown (optional file)

A placement has a digit for each node, the number of its used slots: "44" is two nodes with four used slots each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from farandole.control.scheduler.errors import TraceError
from farandole.control.scheduler.job import Measurement, Noise
from farandole.control.simulator.application import Application, Constants, Convergence
from farandole.control.simulator.step_times import Measured, Shape, StepTimes, canonical
from farandole.control.simulator.tables import number, read_texts, rows_of, seconds_of_step, whole

# Constants of the published traces' simulators: measured restart times, and slowdowns compared with real runs.
PUBLISHED = {
    "cifar10": Constants(50, 1.8),
    "deepspeech2": Constants(25, 1.2, {"rtx": 57.0}),
    "bert": Constants(120, 1.2),
    "yolov3": Constants(80, 1.2),
    "imagenet": Constants(250, 1.2),
    "ncf": Constants(15, 1.5),
}

_FILE = re.compile(r"(?:.*/)?apps/(?P<app>[^/]+)/(?P<table>[a-z]+)(?:-(?P<key>[^/]+))?\.csv")

_Tables = dict[str, dict[str, str]]
"""Texts of the files of each kind of table, by type of node or batch size."""


def read_profiles(place: Path) -> dict[str, Application]:
    """Return the applications whose profiles are in a directory or a tar archive.

    Raises:
        TraceError: something there cannot be read, or there are no profiles.
    """
    applications = applications_of(read_texts(place))
    if not applications:
        raise TraceError(f"{place}: there are no profiles", "they are files such as apps/NAME/placements-TYPE.csv")
    return applications


def applications_of(texts: Mapping[str, str]) -> dict[str, Application]:
    """Return the applications whose profiles are in `texts`, the texts of files by their paths.

    Raises:
        TraceError: something in them cannot be read.
    """
    found: dict[str, _Tables] = {}
    for name, text in texts.items():
        if file := _FILE.fullmatch(name):
            found.setdefault(file["app"], {}).setdefault(file["table"], {})[file["key"] or ""] = text
    placements = {app: _placements(app, tables) for app, tables in found.items()}
    layouts = {app: _layouts(app, tables) for app, tables in found.items()}
    nodes = _profiled_nodes(placements, layouts)
    return {app: _application(app, found[app], placements[app], layouts[app], nodes) for app in found}


_Placements = Mapping[str, Mapping[Shape, list[tuple[float, float, float]]]]
_Layouts = Mapping[str, list[Measured]]


def _placements(app: str, tables: _Tables) -> dict[str, dict[Shape, list[tuple[float, float, float]]]]:
    by_type: dict[str, dict[Shape, list[tuple[float, float, float]]]] = {}
    for type_, text in tables.get("placements", {}).items():
        if type_:
            name = f"apps/{app}/placements-{type_}.csv"
            shapes = by_type.setdefault(type_, {})
            for line, row in rows_of(name, text, ("placement", "local_bsz", "step_time", "sync_time")):
                if not re.fullmatch("[1-9]+", row["placement"]):
                    what = f"{row['placement']!r} is not a placement"
                    raise TraceError(f"{name}, line {line}: {what}", "use one digit for each node, such as 44")
                times = seconds_of_step(name, line, row)
                shape = canonical([int(digit) for digit in row["placement"]])
                shapes.setdefault(shape, []).append((number(name, line, row, "local_bsz", 1), *times))
    if not any(by_type.values()):
        raise TraceError(f"apps/{app}: there is no placements-TYPE.csv with a row in it")
    return by_type


def _layouts(app: str, tables: _Tables) -> dict[str, list[Measured]]:
    by_type: dict[str, list[Measured]] = {}
    for type_, text in tables.get("scalability", {}).items():
        name = f"apps/{app}/scalability-{type_}.csv"
        for line, row in rows_of(name, text, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
            nodes, workers = whole(name, line, row, "num_nodes", 1), whole(name, line, row, "num_replicas", 1)
            if nodes > workers:
                raise TraceError(f"{name}, line {line}: {workers} replicas are not enough for {nodes} nodes")
            local = number(name, line, row, "local_bsz", 1)
            by_type.setdefault(type_, []).append(Measured(nodes, workers, local, *seconds_of_step(name, line, row)))
    return by_type


def _profiled_nodes(placements: Mapping[str, _Placements], layouts: Mapping[str, _Layouts]) -> dict[str, int]:
    """Return, for each type of node, the largest number of nodes in any measurement."""
    most: dict[str, int] = {}
    for of_app in placements.values():
        for type_, shapes in of_app.items():
            most[type_] = max(most.get(type_, 1), *map(len, shapes))
    for rows_of_app in layouts.values():
        for type_, rows in rows_of_app.items():
            most[type_] = max(most.get(type_, 1), *(row.nodes for row in rows))
    return most


def _application(
    app: str, tables: _Tables, placements: _Placements, layouts: _Layouts, nodes: Mapping[str, int]
) -> Application:
    steps = {
        type_: StepTimes(shapes, layouts.get(type_, ()), nodes[type_]) for type_, shapes in placements.items() if shapes
    }
    one_slot = {
        type_: tuple(Measurement(1, 1, *row) for row in sorted(shapes.get((1,), ())))
        for type_, shapes in placements.items()
    }
    return Application(app, steps, _convergence(app, tables), _constants(app, tables), one_slot)


def _convergence(app: str, tables: _Tables) -> Convergence:
    runs: dict[int, list[tuple[float, Noise]]] = {}
    for key, text in tables.get("validation", {}).items():
        name = f"apps/{app}/validation-{key}.csv"
        if not key.isdecimal() or int(key) < 1:
            raise TraceError(f"{name}: {key!r} is not a batch size")
        run = runs.setdefault(int(key), [])
        for line, row in rows_of(name, text, ("progress", "grad_sqr", "grad_var")):
            noise = Noise(number(name, line, row, "grad_sqr", 0), number(name, line, row, "grad_var", 0))
            if not noise.sqr + noise.var > 0:
                raise TraceError(f"{name}, line {line}: grad_sqr and grad_var are both 0")
            run.append((number(name, line, row, "progress", run[-1][0] if run else 0), noise))
    runs = {batch: run for batch, run in runs.items() if run}
    if not runs:
        raise TraceError(f"apps/{app}: there is no validation-BATCH.csv with a row in it")
    return Convergence.of_runs(runs)


def _constants(app: str, tables: _Tables) -> Constants:
    for text in tables.get("constants", {}).values():
        name = f"apps/{app}/constants.csv"
        for line, row in rows_of(name, text, ("restart", "slowdown")):
            return Constants(number(name, line, row, "restart", 0), number(name, line, row, "slowdown", 0.01))
    return PUBLISHED.get(app, Constants())
