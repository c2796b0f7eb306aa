"""What a process knows of the worker that has started it."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import pytest

from farandole.base.settings.table import Settings
from farandole.errors import InvalidRequestError, NotInitializedError
from farandole.worker.core import identity
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.core.identity import VARIABLE, Identity, Parentage, Publication
from farandole.worker.core.join import ALONE

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def identity_of(rank: int, generation: int = 1, **groups: list[int]) -> Identity:
    world = msgspec.structs.replace(
        ALONE, rank=rank, size=4, generation=generation, hostnames=("a", "a", "b", "b"), contacts=("secret place",) * 4
    )
    settings = dataclasses.replace(Settings(), secret=b"secret", elastic=True)
    sets = {int(name.removeprefix("set")): ranks for name, ranks in groups.items()}
    return Identity(os.getpid(), world, {0: [0, 1, 2, 3], **sets}, settings, identity.placement_in(os.environ))


@pytest.fixture
def publication() -> Iterator[Publication]:
    publication = Publication()
    yield publication
    publication.withdraw()


def answer(connection: Connection, process_set: ProcessSet | None = None) -> None:
    """Say who the worker is, each time that this is asked."""
    while connection.recv():
        known = identity.parentage.in_use
        sets = (global_process_set.ranks, process_set and (process_set.included(), process_set.process_set_id))
        connection.send((known, sets))


class Child:
    """A process that answers."""

    def __init__(self, method: str, process_set: ProcessSet | None = None) -> None:
        context: Any = multiprocessing.get_context(method)
        self._connection, theirs = multiprocessing.Pipe()
        self._process = context.Process(target=answer, args=(theirs, process_set))
        self._process.start()

    def ask(self) -> Any:
        self._connection.send(True)
        assert self._connection.poll(60)
        return self._connection.recv()

    def end(self) -> None:
        self._connection.send(False)
        self._process.join(60)
        assert self._process.exitcode == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_knows_what_was_so_when_it_began(publication: Publication, method: str) -> None:
    """Also in one that the fork server forks, which has begun before the second world."""
    evens = ProcessSet([0, 2])
    publication.publish(identity_of(2, set1=[0, 2]))
    first = Child(method, evens)
    assert first.ask()[0].world.rank == 2
    publication.publish(identity_of(3, generation=2))
    second = Child(method, evens)
    (known, sets), (next_known, next_sets) = first.ask(), second.ask()
    first.end()
    second.end()
    assert (known.world.rank, known.world.generation, known.pid) == (2, 1, os.getpid())
    assert sets == ([0, 1, 2, 3], (True, 1))
    assert (next_known.world.rank, next_known.world.generation) == (3, 2)
    assert next_sets == ([0, 1, 2, 3], (None, None))
    assert known.settings.elastic and known.settings.secret == b"" and known.world.contacts == ()


def test_other_programs_know_nothing(publication: Publication) -> None:
    publication.publish(identity_of(1))
    code = "from farandole.worker.core.identity import parentage; print(parentage.known)"
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout == "None\n"
    )


def test_other_programs_cannot_enter_the_world_in_the_worker_s_place(publication: Publication) -> None:
    publication.publish(identity_of(1))
    code = (
        "import os; from farandole.worker.core.identity import check_own_place\n"
        "check_own_place({**os.environ, 'FARANDOLE_RANK': '0'})\n"
        "check_own_place(os.environ)"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"environment of the worker of rank 1, process {os.getpid()}" in failed.stderr.splitlines()[-1]


def test_a_process_with_a_place_of_its_own_is_nobodys(
    publication: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker of a job that a worker starts; it may also learn its place after it has begun."""
    parent = Parentage()
    parent.inherit(identity_of(1))
    assert parent.resume()
    publication.publish(identity_of(1))
    monkeypatch.setenv("FARANDOLE_RANK", "0")
    assert not parent.resume() and parent.in_use is None
    child = Child("spawn")
    assert child.ask()[0] is None
    child.end()


def test_after_shutdown_nothing_is_known_until_init() -> None:
    parent = Parentage()
    assert isinstance(parent.refusal(), NotInitializedError)
    parent.inherit(identity_of(1))
    assert isinstance(parent.refusal(), InvalidRequestError)
    assert "started by the worker of rank 1, process " in str(parent.refusal())
    parent.leave()
    assert isinstance(parent.refusal(), NotInitializedError)
    assert parent.resume() and parent.in_use == identity_of(1)


@pytest.mark.parametrize("told", ["", "1", "x:y", "OWN:0", "1:999", "999999999:3"])
def test_a_variable_that_leads_nowhere(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "--multiprocessing-fork"])
    monkeypatch.setenv(VARIABLE, told.replace("OWN", str(os.getpid())))
    assert Parentage().known is None


def test_a_worker_that_has_left_is_not_found(publication: Publication) -> None:
    publication.publish(identity_of(1))
    assert os.environ[VARIABLE].startswith(f"{os.getpid()}:")
    publication.withdraw()
    assert VARIABLE not in os.environ
