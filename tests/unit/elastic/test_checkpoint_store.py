"""The directory of checkpoints: which one is the newest good one, what is removed and when, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.worker.elastic.checkpoint.manifest import (
    Manifest,
    ManifestError,
    Record,
    describe,
    seal,
    unseal_manifest,
    unseal_record,
)
from farandole.worker.elastic.checkpoint.store import MANIFEST, AttemptId, Store


def manifest_of(step: int, folder: Path, **changes: object) -> Manifest:
    files = tuple(describe(path) for path in sorted(folder.iterdir()) if path.name.startswith("shard"))
    values = {"step": step, "epoch": 1, "world": 2, "format": "x", "files": files, "tensors": {}, "plain": None}
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def publish(store: Store, step: int, content: bytes = b"content", run: str = "r") -> Path:
    attempt = AttemptId(run, 0, step)
    store.begin(attempt)
    folder = store.path_of(attempt)
    folder.mkdir(parents=True)
    for rank in range(2):
        (folder / f"shard-{rank}").write_bytes(content + bytes([rank]))
    return store.publish(attempt, manifest_of(step, folder)).path


def names(store: Store) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "not" / "there" / "yet")


def test_nothing_is_found_where_nothing_is(store: Store) -> None:
    assert store.latest().found is None and store.latest().passed_over == () and store.newest() is None


def test_what_was_written_last_is_the_newest_even_with_fewer_steps(store: Store) -> None:
    for step in (500, 600, 20):
        publish(store, step)
    found = store.latest().found
    assert found is not None and (found.path.name, found.manifest.number) == ("step-00000020", 3)
    store.retain(2)
    assert names(store) == ["step-00000020", "step-00000600"]


def test_a_step_that_is_written_again_replaces_nothing(store: Store) -> None:
    first = publish(store, 7, b"old")
    assert [publish(store, 7, b"new").name, publish(store, 7).name] == ["step-00000007.1", "step-00000007.2"]
    assert (first / "shard-0").read_bytes() == b"old\0"
    store.retain(1)
    assert names(store) == ["step-00000007.2"]


def test_a_checkpoint_holds_nothing_but_its_files(store: Store) -> None:
    attempt = AttemptId("r", 0, 1)
    folder = store.path_of(attempt)
    folder.mkdir(parents=True)
    for name in ("shard-0", "record-00000.json", "x.draft"):
        (folder / name).write_bytes(b"")
    path = store.publish(attempt, manifest_of(1, folder)).path
    assert sorted(file.name for file in path.iterdir()) == [MANIFEST, "shard-0"]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[:-1])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "longer":
        path.write_bytes(content + b"\0")
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "longer", "flipped"])
@pytest.mark.parametrize("which", ["shard-0", "shard-1", MANIFEST])
def test_a_damaged_checkpoint_is_passed_over_by_name(store: Store, which: str, how: str) -> None:
    good = publish(store, 1)
    damage(publish(store, 2) / which, how)
    search = store.latest()
    assert search.found is not None and search.found.path == good
    (trouble,) = search.passed_over
    assert str(store.directory / "step-00000002" / which) in trouble


def test_every_flipped_bit_of_a_manifest_is_noticed(store: Store) -> None:
    path = publish(store, 1) / MANIFEST
    text = path.read_bytes()
    for bit in range(0, 8 * len(text), 3):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert unseal_manifest(bytes(changed)) == unseal_manifest(text)
        except ManifestError:
            continue


def test_all_damaged_is_not_the_same_as_none(store: Store) -> None:
    damage(publish(store, 1) / "shard-0", "missing")
    assert store.latest().found is None and len(store.latest().passed_over) == 1


def test_a_manifest_of_the_future_or_of_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is of version 2, but this farandole supports up to 1"):
        unseal_manifest(seal(manifest_of(1, tmp_path, version=2)))
    (tmp_path / "shard").touch()
    file = describe(tmp_path / "shard")
    for name in ("../shard", "/etc/passwd", "", ".."):
        elsewhere = type(file)(name, file.size, file.sha256)
        with pytest.raises(ManifestError, match="another folder"):
            unseal_manifest(seal(manifest_of(1, tmp_path, files=(elsewhere,))))


def test_a_record_is_no_manifest(tmp_path: Path) -> None:
    record = Record("layout", (), "")
    assert unseal_record(seal(record)) == record
    with pytest.raises(ManifestError):
        unseal_manifest(seal(record))
    for wrong in (b"", b"{}", b"\xff", b"[1]"):
        with pytest.raises(ManifestError):
            unseal_record(wrong)


def test_only_attempts_of_the_past_are_removed(store: Store) -> None:
    now = AttemptId("r", 3, 40)
    past = [AttemptId("r", 3, 39), AttemptId("r", 2, 50), AttemptId("other", 9, 99)]
    future = [now, AttemptId("r", 3, 41), AttemptId("r", 4, 1)]
    for attempt in (*past, *future):
        store.path_of(attempt).mkdir(parents=True)
        assert AttemptId.of_folder(attempt.folder) == attempt
    (store.directory / ".partial-removed-step-00000001").mkdir()
    complete = publish(store, 1, run="a")  # Of another run, and so it removes what all others have left.
    assert names(store) == [complete.name]
    for attempt in (*past, *future):
        store.path_of(attempt).mkdir(parents=True)
    (store.directory / ".partial-removed-step-00000001").mkdir()
    store.begin(now)
    assert names(store) == sorted([complete.name, *(attempt.folder for attempt in future)])


def test_what_is_not_ours_is_left_alone(store: Store) -> None:
    for name in ("step-1", "step-00000009", "mine", "step-00000009-best"):
        (store.directory / name).mkdir(parents=True)
    for step in range(1, 4):
        publish(store, step)
    store.retain(1)
    assert names(store) == ["mine", "step-00000003", "step-00000009", "step-00000009-best", "step-1"]


def test_a_shard_that_is_taken_back_at_the_last_moment_undoes_the_checkpoint(store: Store) -> None:
    attempt = AttemptId("r", 0, 1)
    folder = store.path_of(attempt)
    folder.mkdir(parents=True)
    (folder / "shard-0").write_bytes(b"x")
    manifest = manifest_of(1, folder)
    (folder / "shard-0").unlink()
    with pytest.raises(FileNotFoundError, match="taken back"):
        store.publish(attempt, manifest)
    assert names(store) == []
