"""Which way a worker takes to the others, for every combination of who started it and what was set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from farandole.base.settings.table import Settings
from farandole.base.wire import interfaces
from farandole.base.wire.interfaces import Address
from farandole.errors import SettingError, StartError
from farandole.worker.core.join import JoinPlan, join_world, plan_join
from farandole.worker.core.user_files import job_secret

BY_HAND = {"FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "2"}
ROSTER = {"FARANDOLE_ROSTER": "10.0.0.1:4711", "FARANDOLE_SECRET": "00ff"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "here@1",
}
ACROSS = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    there = [Address("eth0", "10.0.0.7", 24, 1000), Address("eth1", "fd00::7", 64, 100)]
    monkeypatch.setattr(interfaces, "_running", lambda: iter(there))


def way(environment: Mapping[str, str]) -> JoinPlan:
    return plan_join(Settings.from_environment(environment), environment)


def test_without_a_launcher_a_worker_is_alone() -> None:
    assert way({}) == JoinPlan(Settings())
    met = join_world(way({}), "")
    assert (met.world.rank, met.world.size, met.roster, met.own_roster) == (0, 1, None, None)


@pytest.mark.parametrize("environment", [MPIRUN, BY_HAND | ROSTER])
def test_one_worker_is_alone_whoever_started_it(environment: Mapping[str, str]) -> None:
    one = {name: {"0": "0", "1": "0", "2": "1"}.get(value, value) for name, value in environment.items()}
    assert join_world(way(one), "").world.size == 1


def test_our_launcher_wins_over_all_others() -> None:
    settings = {**ROSTER, "FARANDOLE_JOB": "a", "FARANDOLE_LISTEN": "127.0.0.1", "FARANDOLE_RANK": "0"}
    inside = way({**settings, "FARANDOLE_SIZE": "2", **MPIRUN})
    assert inside == JoinPlan(Settings.from_environment(settings))


def test_a_launcher_that_a_worker_has_started_is_an_error() -> None:
    settings = {**ROSTER, "FARANDOLE_JOB": "a", "FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "2", **MPIRUN}
    assert way({**settings, "FARANDOLE_WITHIN": "srun,mpirun (Open MPI)"}).found is None
    assert (
        way({**settings, "FARANDOLE_WITHIN": "", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}).found
        is None
    )
    with pytest.raises(SettingError, match=r"has started mpirun \(Open MPI\) as a worker, .* as rank 1 of 2"):
        way({**settings, "FARANDOLE_WITHIN": "srun"})


def test_a_roster_whose_server_tells_no_size_is_somebody_elses() -> None:
    assert way({**ROSTER, "FARANDOLE_RANK": "1"}).found is None


def test_started_through_another_launcher_it_tells_the_rank_and_ours_serves_the_roster() -> None:
    through = way({**ROSTER, "FARANDOLE_JOB": "a", **ACROSS})
    assert through.found is None
    assert (through.settings.rank, through.settings.listen) == (1, "10.0.0.7,fd00::7")
    with pytest.raises(SettingError, match="not this worker's rank"):
        way({**ROSTER, "FARANDOLE_JOB": "a"})


def test_the_secret_follows_from_the_users_key_unless_it_is_given() -> None:
    found = way(MPIRUN)
    assert found.settings.secret == job_secret("mpirun (Open MPI) here@1")
    assert way({**MPIRUN, "FARANDOLE_SECRET": "00ff"}).settings.secret == b"\0\xff"
    assert way({**MPIRUN, "FARANDOLE_JOB_KEY": "x"}).settings.secret == job_secret("x")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (MPIRUN, "127.0.0.1"),
        (ACROSS, "10.0.0.7,fd00::7"),
        (ACROSS | {"FARANDOLE_LISTEN": "10.0.0.9"}, "10.0.0.9"),
        (ACROSS | {"FARANDOLE_NETWORK": "eth1"}, "fd00::7"),
        (MPIRUN | {"FARANDOLE_NETWORK": "10.0.0.0/8"}, "10.0.0.7"),
        (BY_HAND | ROSTER, "10.0.0.7,fd00::7"),
        (BY_HAND | {"FARANDOLE_ROSTER": "localhost:1"}, "127.0.0.1"),
        (BY_HAND | {"FARANDOLE_ROSTER": "[::1]:1,127.0.0.1:1"}, "127.0.0.1"),
    ],
)
def test_where_a_worker_listens(environment: Mapping[str, str], expected: str) -> None:
    assert way(environment).settings.listen == expected


def test_a_network_that_is_not_there_is_told() -> None:
    with pytest.raises(SettingError, match="eth0 10"):
        way(ACROSS | {"FARANDOLE_NETWORK": "ib0"})


def test_by_hand_it_needs_to_be_told_where_to_meet() -> None:
    with pytest.raises(SettingError, match=r"FARANDOLE_ROSTER=.*FARANDOLE_SECRET.*FARANDOLE_JOB_KEY"):
        way(BY_HAND)
    found = way({**BY_HAND, "FARANDOLE_JOB_KEY": "mine"}).found
    assert found is not None
    assert found.job_key == "mine"


def test_rank_0_that_never_comes_ends_the_wait_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(StartError, match=r"rank 1 of 2.*within 0\.05 s: nobody wrote .*meet/.*FARANDOLE_SECRET"):
        join_world(way({**MPIRUN, "FARANDOLE_START_TIMEOUT": "0.05"}), "")
