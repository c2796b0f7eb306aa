"""What autotuning found, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farandole.base.settings.table import Settings
from farandole.base.wire.rendezvous import World
from farandole.errors import InvalidRequestError, SettingError
from farandole.worker.core import tuning_files

WORLD = World(1, 0, 3, (), 0, 2, 0, 2, ("a", "a", "b"))
SMALLER = World(2, 0, 2, (), 0, 2, 0, 1, ("a", "a"))
KNOBS = {"fusion_threshold": 1 << 20, "chunk_bytes": 65536}


class FakeEngine:
    """Takes what is kept; refuses names that it does not know."""

    def __init__(self) -> None:
        self.kept: dict[str, int] | None = None

    def keep(self, knobs: dict[str, int]) -> None:
        if unknown := set(knobs) - set(KNOBS):
            raise InvalidRequestError(f"there is no knob {unknown}")
        self.kept = knobs


def use(settings: Settings, world: World = WORLD) -> dict[str, int] | None:
    engine: Any = FakeEngine()
    tuning_files.use_kept(settings, world, engine)
    kept: dict[str, int] | None = engine.kept
    return kept


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "farandole" / "tuning"


def test_what_is_kept_is_used_by_the_next_job_that_tunes(cache: Path) -> None:
    settings = Settings(autotune=True)
    assert use(settings) is None, "there is nothing yet"
    path = tuning_files.file_for(settings, WORLD)
    assert path is not None and path.parent == cache
    tuning_files.write(path, WORLD, KNOBS, 1.5)
    assert use(settings) == KNOBS
    assert [file.name for file in cache.iterdir()] == [path.name], "no half-written file is left"
    assert json.loads(path.read_text())["workers_by_host"] == [2, 1]


def test_nobody_uses_it_unasked(cache: Path) -> None:
    tuning_files.write(cache / "x.json", WORLD, KNOBS, 1.5)
    assert tuning_files.file_for(Settings(), WORLD) is None
    assert use(Settings()) is None


def test_only_rank_0_reads_it(tmp_path: Path) -> None:
    other = World(1, 1, 3, (), 1, 2, 0, 2, ("a", "a", "b"))
    assert use(Settings(tuning=str(tmp_path / "is not there")), other) is None


def test_hosts_and_processors_have_files_of_their_own() -> None:
    alone = World(1, 0, 3, (), 0, 3, 0, 1, ("a", "a", "a"))
    names = {tuning_files.name_of(world, cpu) for world in (WORLD, alone) for cpu in ("one", "another")}
    assert len(names) == 4
    assert tuning_files.name_of(WORLD, "Some (R) CPU @ 2.0 GHz/x").startswith("2+1-some-r-cpu-2.0-ghz-x-v")


def test_a_named_file_is_used_as_it_is_and_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    settings = Settings(tuning=str(path))
    with pytest.raises(SettingError, match="cannot be read"):
        use(settings)
    tuning_files.write(path, WORLD, KNOBS, 1.5)
    assert use(settings) == KNOBS
    assert use(Settings(tuning=str(path), autotune=True)) == KNOBS


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"knobs": 1}', '{"knobs": {"chunk_bytes": -1}}', '{"knobs": {"x": 1}}']
)
def test_a_file_that_holds_something_else(
    text: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(SettingError, match="the results of autotuning cannot be used"):
        use(Settings(tuning=str(path)))
    settings = Settings(autotune=True)
    ours = tuning_files.file_for(settings, WORLD)
    assert ours is not None
    cache.mkdir(parents=True)
    ours.write_text(text)
    assert use(settings) is None, "the user has not named it, so the job goes on without"
    assert "Autotuning starts anew" in capsys.readouterr().err


# --- where workers come and go ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False], ids=["a named file", "the files of autotuning"])
def test_each_world_begins_with_what_was_found_on_such_hosts(named: bool, tmp_path: Path) -> None:
    settings = Settings(elastic=True, **({"tuning": str(tmp_path / "tuned.json")} if named else {"autotune": True}))
    path = tuning_files.file_for(settings, WORLD)
    assert path is not None
    tuning_files.write(path, WORLD, KNOBS, 1.5)
    engine: Any = FakeEngine()
    kept = []
    for world in (WORLD, SMALLER, WORLD):
        tuning_files.use_kept(settings, world, engine)
        kept.append(engine.kept)
    assert kept == [KNOBS, {}, KNOBS], "nothing of one world stays for another"


def test_it_is_said_that_a_named_file_is_for_other_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuned.json"
    tuning_files.write(path, WORLD, KNOBS, 1.5)
    assert use(Settings(elastic=True, tuning=str(path)), SMALLER) == {}
    assert (
        f"the values in {path} were found with other workers on each host: [2, 1], not [2]" in capsys.readouterr().err
    )


@pytest.mark.parametrize("text", [None, "[]"], ids=["it is not there", "it holds something else"])
def test_a_new_rank_0_does_not_end_for_its_want_of_the_named_file(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuned.json"
    if text is not None:
        path.write_text(text)
    assert use(Settings(elastic=True, tuning=str(path)), SMALLER) == {}
    assert "The defaults are used." in capsys.readouterr().err
