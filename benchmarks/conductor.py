"""Let contenders take turns. A contender that fails is noted and left out, and the others go on."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.hosts import Bed
from benchmarks.peers.base import MODULES, Setup
from benchmarks.teams import Team, TeamFailed, Unsupported
from benchmarks.topology import Topology

# The suffix of the labels of another checkout's contenders.
OTHER_CHECKOUT = ", other checkout"
# The part of the free memory that the contenders of one measurement may hold at the same time.
_MEMORY_SHARE = 0.4
_MOST_CALLS = 2000
# The least rounds of one contender in one measurement, when its calls are slow.
_MOST_SECONDS = 8.0


@dataclass(frozen=True)
class Contender:
    """One column of a table."""

    label: str
    peer: str
    work: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One measurement.

    Attributes:
        keys: the values that distinguish it from the other rows of its case, such as world and bytes.
        seconds: the seconds of one call on the slowest worker, by contender and round.
        notes: by contender, a remark for the reader, or why there are no seconds.
    """

    keys: dict[str, Any]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def median(self, label: str) -> float | None:
        """Return a contender's median time, if it has one."""
        return statistics.median(self.seconds[label]) if self.seconds.get(label) else None


class Conductor:
    """Owns the teams and the folder they share.

    Args:
        folder: the folder of sockets and of the workers' output.
        rounds: turns of each contender in one measurement.
        seconds: about how long one measurement may take.
        against: another checkout of farandole, which takes part wherever farandole does on one host.
    """

    def __init__(self, folder: Path, rounds: int, seconds: float, against: Path | None = None) -> None:
        self.folder = folder
        self.rounds = rounds
        self.seconds = seconds
        self.against = against
        self.failures: list[str] = []
        self._teams: dict[tuple[str, Topology], Team | None] = {}
        """The teams; None for one that failed, which is not tried again."""
        self._setups = 0

    def say(self, text: str) -> None:
        """Print a line for the user who waits."""
        print(text, file=sys.stderr, flush=True)

    def ask(self, peer: str, topology: Topology, work: str, arguments: Mapping[str, Any]) -> list[Any] | None:
        """Return the value of one call of a work on every worker; None if the team has failed."""
        team = self._team(peer, topology, None)
        if team is None:
            return None
        try:
            team.prepare(work, work, arguments)
            return team.ask(work)
        except (TeamFailed, Unsupported) as error:
            self._give_up(peer, topology, str(error))
            return None

    def measure(
        self,
        topology: Topology,
        contenders: Sequence[Contender],
        keys: Mapping[str, Any],
        *,
        bed: Bed | None = None,
        bytes_held: int = 0,
    ) -> Row:
        """Measure contenders on one topology, in turns.

        Args:
            topology: the topology of all contenders.
            contenders: the contenders, whose labels differ.
            keys: the keys of the row.
            bed: the hosts, when the topology has several.
            bytes_held: by each worker of each contender. What does not fit into memory together takes turns of another
                kind: one contender after the other, which the row notes.
        """
        row = Row(dict(keys))
        if self.against is not None and bed is None:
            contenders = _with_other_checkout(contenders)
        started = time.monotonic()
        fits = bytes_held * topology.size * len(contenders) < _MEMORY_SHARE * _free_memory()
        for group in [list(contenders)] if fits else [[contender] for contender in contenders]:
            turns = [turn for contender in group if (turn := self._prepare(contender, topology, bed, row))]
            self._take_turns(turns, len(contenders), row)
            for turn in turns:
                self._attempt(turn, row, lambda turn: turn.team.release(turn.contender.label))
        if not fits:
            row.notes["order"] = "one contender after the other, as memory does not hold all"
        shown = " ".join(f"{key}={value}" for key, value in keys.items())
        self.say(f"    {shown:40} {time.monotonic() - started:5.1f} s")
        return row

    def _prepare(self, contender: Contender, topology: Topology, bed: Bed | None, row: Row) -> _Turn | None:
        team = self._team(contender.peer, topology, bed)
        if team is None:
            row.notes[contender.label] = "failed before"
            return None
        turn = _Turn(contender, topology, team)
        try:
            note = team.prepare(contender.label, contender.work, contender.arguments)
        except Unsupported as why:
            row.notes[contender.label] = str(why)
            return None
        except TeamFailed as error:
            self._give_up(contender.peer, topology, str(error))
            row.notes[contender.label] = "failed"
            return None
        if note:
            row.notes[contender.label] = note
        return turn

    def _take_turns(self, turns: list[_Turn], contenders: int, row: Row) -> None:
        """Let each contender time a call, then let them take turns; a contender that fails is left out from then on."""
        share = self.seconds / (self.rounds * contenders)
        for turn in turns:
            self._attempt(turn, row, lambda turn: turn.calibrate(share))
        for number in range(self.rounds):
            # No contender always follows the same one.
            for turn in [*turns[number % len(turns) :], *turns[: number % len(turns)]] if turns else []:
                if number < turn.rounds(self.rounds, share):
                    self._attempt(turn, row, lambda turn: turn.take(row))

    def _attempt(self, turn: _Turn, row: Row, action: Any) -> None:
        if turn.failed or self._teams.get((turn.contender.peer, turn.topology)) is not turn.team:
            return
        try:
            action(turn)
        except TeamFailed as error:
            turn.failed = True
            row.seconds.pop(turn.contender.label, None)
            row.notes[turn.contender.label] = "failed"
            self._give_up(turn.contender.peer, turn.topology, str(error))

    # --- teams ---------------------------------------------------------------------------------------------------

    def _team(self, peer: str, topology: Topology, bed: Bed | None) -> Team | None:
        key = (peer, topology)
        if key not in self._teams:
            module = importlib.import_module(MODULES[peer])
            missing = module.missing()
            if missing:
                self._give_up(peer, topology, f"{module.NAME}: {missing}")
                return None
            self._setups += 1
            setup = Setup(
                peer, topology, self.folder / str(self._setups), self.folder / f"{self._setups}.s", bed, self.against
            )
            setup.folder.mkdir()
            started = time.monotonic()
            try:
                self._teams[key] = Team(setup, module)
                self.say(f"    started {module.NAME}: {topology}, {time.monotonic() - started:.1f} s")
            except (TeamFailed, OSError) as error:
                self._give_up(peer, topology, str(error))
        return self._teams[key]

    def _give_up(self, peer: str, topology: Topology, why: str) -> None:
        team = self._teams.get((peer, topology))
        self._teams[peer, topology] = None
        if team is not None:
            team.kill()
        self.failures.append(why)
        self.say(f"    warning: {why}\n    The others go on.")

    def dismiss(self, topology: Topology) -> None:
        """End the teams of a topology, and clear which of them failed."""
        for key in [key for key in self._teams if key[1] == topology]:
            team = self._teams.pop(key)
            if team is not None:
                team.close()

    def dismiss_all(self) -> None:
        """End all teams."""
        for topology in {topology for _, topology in self._teams}:
            self.dismiss(topology)


class _Turn:
    """A contender that takes turns."""

    def __init__(self, contender: Contender, topology: Topology, team: Team) -> None:
        self.contender = contender
        self.topology = topology
        self.team = team
        self.failed = False
        self._calls = 1
        self._estimate = 0.0

    def calibrate(self, share: float) -> None:
        """Measure how many calls fit into `share` seconds. The first call is a warm-up and does not count."""
        first = self.team.time(self.contender.label, 1)
        few = max(1, min(20, int(share / max(first, 1e-6))))
        self._estimate = first if first > share else self.team.time(self.contender.label, few)
        self._calls = max(1, min(_MOST_CALLS, int(share / max(self._estimate, 1e-7))))

    def rounds(self, most: int, share: float) -> int:
        """Return the number of rounds: fewer when a call takes more than a turn, fewest when it takes seconds."""
        if self._estimate <= 2 * share:
            return most
        return min(most, 3, max(1, int(_MOST_SECONDS / self._estimate)))

    def take(self, row: Row) -> None:
        """Time one turn and note it."""
        row.seconds.setdefault(self.contender.label, []).append(self.team.time(self.contender.label, self._calls))


def _with_other_checkout(contenders: Sequence[Contender]) -> list[Contender]:
    """Return the contenders; each of farandole's own, except the bounds, is followed by that of the other checkout."""
    found = []
    for contender in contenders:
        found.append(contender)
        if contender.peer == "farandole" and contender.label.startswith("farandole"):
            found.append(replace(contender, label=contender.label + OTHER_CHECKOUT, peer="other_checkout"))
    return found


def _free_memory() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10


@contextlib.contextmanager
def conducting(rounds: int, seconds: float, against: Path | None = None) -> Iterator[Conductor]:
    """Make a conductor, and remove all that it leaves behind."""
    # TMPDIR is not used: on some machines its path is longer than the name of a socket may be.
    folder = Path(tempfile.mkdtemp(prefix="farandole-", dir="/tmp"))
    conductor = Conductor(folder, rounds, seconds, against)
    try:
        yield conductor
    finally:
        conductor.dismiss_all()
        shutil.rmtree(folder, ignore_errors=True)
