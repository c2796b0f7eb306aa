"""The cache of shipped files on a host: what it contains, and for how long."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from farandole.control.agent import cache as agent_cache
from farandole.control.agent.cache import KEPT_SECONDS, UNTOUCHED_SECONDS, Cache
from farandole.control.agent.file_messages import Directory, Entry, File, Link

NOW = time.time()
DAY = 24 * 3600.0


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(os.fsencode(tmp_path / "cache"))


def age(path: Path | bytes, seconds: float) -> None:
    os.utime(path, (NOW - seconds, NOW - seconds), follow_symlinks=False)


def keep(cache: Cache, content: bytes, seconds_ago: float = 0) -> bytes:
    """Put an object into the cache that was last used some time ago, and return its digest."""
    digest = hashlib.sha256(content).digest()
    partial = cache.begin(digest)
    os.write(partial.fd, content)
    cache.add(partial, digest)
    age(cache.object(digest), seconds_ago)
    return digest


def prune(cache: Cache) -> None:
    for _ in cache.prune(NOW):
        pass


# --- objects -----------------------------------------------------------------------------------------------------


def test_object_exists_once_it_is_complete(cache: Cache) -> None:
    digest = keep(cache, b"content")
    assert cache.has(digest, 7)
    assert not cache.has(digest, 8)
    assert not cache.has(bytes(32), 7)


def test_lookup_marks_object_as_used(cache: Cache) -> None:
    used, unused = keep(cache, b"used", KEPT_SECONDS + DAY), keep(cache, b"unused", KEPT_SECONDS + DAY)
    assert cache.has(used, 4)
    prune(cache)
    assert cache.has(used, 4)
    assert not cache.has(unused, 6)


def test_least_recently_used_objects_are_pruned_first(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_cache, "KEPT_BYTES", 25)
    ages = {name: keep(cache, name * 10, days * DAY) for name, days in ((b"a", 2), (b"b", 4), (b"c", 3), (b"d", 5))}
    prune(cache)
    assert {name for name, digest in ages.items() if os.path.exists(cache.object(digest))} == {b"a", b"c"}


def test_recently_used_objects_are_not_pruned(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_cache, "KEPT_BYTES", 0)
    young, old = keep(cache, b"young", UNTOUCHED_SECONDS - 60), keep(cache, b"old", UNTOUCHED_SECONDS + 60)
    prune(cache)
    assert os.path.exists(cache.object(young))
    assert not os.path.exists(cache.object(old))


# --- partial content ---------------------------------------------------------------------------------------------


def test_partial_content_is_locked_by_one_agent(cache: Cache) -> None:
    digest = hashlib.sha256(b"content").digest()
    first, second = cache.begin(digest), cache.begin(digest)
    assert first.path != second.path
    os.write(first.fd, b"con")
    assert cache.resume(digest) is None
    first.close()
    resumed = cache.resume(digest)
    assert resumed is not None
    assert resumed.size() == 3
    cache.add(second, digest)
    resumed.close()


def test_empty_partial_file_is_not_resumed(cache: Cache) -> None:
    digest = bytes(32)
    assert cache.resume(digest) is None
    cache.begin(digest).close()
    assert cache.resume(digest) is None


def test_old_partial_content_is_pruned_unless_locked(cache: Cache, tmp_path: Path) -> None:
    left, written = cache.begin(bytes(32)), cache.begin(bytes([1]) * 32)
    left.close()
    young = tmp_path / "cache" / "partial" / "young"
    young.write_text("x")
    for path in (left.path, written.path):
        age(path, KEPT_SECONDS + DAY)
    prune(cache)
    assert not os.path.exists(left.path)
    assert os.path.exists(written.path)
    assert young.exists()
    written.close()


# --- trees -------------------------------------------------------------------------------------------------------


def place(cache: Cache, job: str) -> tuple[agent_cache.Tree, Path]:
    """Lay out a tree and return it and its root."""
    tree = cache.new_tree(job)
    root = Path(os.fsdecode(tree.path)) / "project"
    (root / "package").mkdir(parents=True)
    (root / "empty").mkdir()
    entries: list[Entry] = [Link(b"link", b"train.py"), Directory(b"empty")]
    (root / "link").symlink_to("train.py")
    for name in ("train.py", "package/a.py", "config.json"):
        (root / name).write_text("x")
        os.utime(root / name, ns=(1, 1))
        entries.append(File(name.encode(), 1, False, 1, bytes(32)))
    tree.seal(tuple(entries))
    age(tree.path, DAY)
    return tree, root


def expire(tree: Path) -> None:
    """Make a tree older than any is kept."""
    age(tree / ".farandole.placed", KEPT_SECONDS + DAY)
    age(tree, KEPT_SECONDS + DAY)


def test_tree_of_running_job_is_not_pruned(cache: Cache) -> None:
    tree, root = place(cache, "job")
    expire(root.parent)
    prune(cache)
    assert (root / "train.py").exists()
    tree.close()


def test_tree_of_ended_job_is_pruned(cache: Cache) -> None:
    tree, root = place(cache, "job")
    tree.close()
    prune(cache)
    assert not root.parent.exists()


def test_files_of_workers_are_kept_for_a_while(cache: Cache) -> None:
    tree, root = place(cache, "job")
    tree.close()
    (root / "config.json").write_text("rewritten by a worker")
    (root / "results").mkdir()
    (root / "results" / "model.pt").write_text("precious")
    (root / "latest").symlink_to("results")
    for _ in range(2):
        age(root.parent, DAY)
        prune(cache)
        assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == [
            "config.json",
            "latest",
            "results",
            "results/model.pt",
        ]
    expire(root.parent)
    prune(cache)
    assert not root.parent.exists()


def test_incomplete_tree_is_pruned(cache: Cache) -> None:
    tree = cache.new_tree("job")
    tree.close()
    (Path(os.fsdecode(tree.path)) / "project").mkdir()
    prune(cache)
    assert os.path.exists(tree.path), "it may be about to be locked"
    age(tree.path, 3600)
    prune(cache)
    assert not os.path.exists(tree.path)


def test_pruning_follows_no_links(cache: Cache, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train.py").write_text("x")
    tree, root = place(cache, "job")
    tree.close()
    (root / "away").symlink_to(outside)
    expire(root.parent)
    prune(cache)
    assert not root.parent.exists()
    assert (outside / "train.py").exists()


def test_a_directory_that_became_a_link_is_not_followed(cache: Cache, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("x")
    os.utime(outside / "a.py", ns=(1, 1))
    tree, root = place(cache, "job")
    tree.close()
    (root / "package" / "a.py").unlink()
    (root / "package").rmdir()
    (root / "package").symlink_to(outside)
    prune(cache)
    assert (outside / "a.py").exists()


def test_each_agent_of_a_job_gets_its_own_tree(cache: Cache) -> None:
    trees = [cache.new_tree("job") for _ in range(3)]
    assert [os.path.basename(tree.path) for tree in trees] == [b"job", b"job.1", b"job.2"]
    for tree in trees:
        tree.close()
