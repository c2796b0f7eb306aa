"""The list of files to ship. Ignored files are tested in test_ignore.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farandole.control.agent.file_messages import File, Link
from farandole.control.launcher.job.ssh_and_ship import ShipLimit, read_ship_limit
from farandole.control.launcher.ship import file_list as launcher_manifest
from farandole.control.launcher.ship.file_list import Hashes, build_manifest
from farandole.control.launcher.ship.missing_files import why_left_out
from farandole.errors import SpecError


def test_links_out_of_directory_are_kept_and_noted(project: Path) -> None:
    (project / "data").symlink_to("/mnt/data")
    (project / "package" / "common").symlink_to("../../common")
    (project / "inside").symlink_to(project / "package" / "deep")
    manifest = build_manifest(str(project))
    targets = {entry.path: entry.target for entry in manifest.entries if isinstance(entry, Link)}
    assert targets[b"data"] == b"/mnt/data"
    assert targets[b"package/common"] == os.fsencode(project.parent / "common")
    assert targets[b"inside"] == b"package/deep"
    assert targets[b"package/up"] == b"../outputs"
    assert sorted(manifest.notes) == [
        "data points out of the directory: the hosts must have their own /mnt/data",
        f"package/common points out of the directory: the hosts must have their own {project.parent}/common",
    ]


def test_directory_may_be_named_through_a_link(project: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(project)
    (project / "inside").symlink_to(tmp_path / "alias" / "train.py")
    manifest = build_manifest(str(tmp_path / "alias"))
    assert Link(b"inside", b"train.py") in manifest.entries
    assert manifest.root == os.fsencode(project)


def test_special_files_are_noted(project: Path) -> None:
    os.mkfifo(project / "pipe")
    assert build_manifest(str(project)).notes == ("pipe is not sent: it is neither a file, a directory nor a link",)
    assert why_left_out(build_manifest(str(project)), "pipe") == "it is neither a file, a directory nor a link"


def test_directory_above_size_limit_is_refused(project: Path) -> None:
    (project / "data" / "raw").mkdir(parents=True)
    with open(project / "data" / "raw" / "train.bin", "wb") as file:
        file.truncate(3_000_000_000)
    with pytest.raises(SpecError) as caught:
        build_manifest(str(project))
    assert caught.value.message == "--ship would send 3 GB, and the limit is 2 GB"
    assert caught.value.hint.startswith(
        "the largest are: data/raw/train.bin (3 GB), words.txt (800 KB), noise.bin (786.4 KB). "
    )
    assert caught.value.hint.endswith("--ship-limit 4G")


def test_directory_with_too_many_files_is_refused(project: Path) -> None:
    (project / "data").mkdir()
    for number in range(20):
        (project / "data" / str(number)).write_text("")
    with pytest.raises(SpecError) as caught:
        build_manifest(str(project), ShipLimit(files=10))
    assert caught.value.message == "--ship would send more than 10 files"
    assert caught.value.hint.endswith("--ship-limit 2G,100")


def test_empty_and_missing_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is nothing to send"):
        build_manifest(str(tmp_path))
    with pytest.raises(SpecError, match="is not a directory"):
        build_manifest(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("500M", ShipLimit(500_000_000)),
        ("1.5g", ShipLimit(1_500_000_000)),
        ("10GB", ShipLimit(10_000_000_000)),
        ("3000", ShipLimit(3000)),
        ("10G,300000", ShipLimit(10_000_000_000, 300_000)),
    ],
)
def test_limits(text: str, limit: ShipLimit) -> None:
    assert read_ship_limit(text) == limit


@pytest.mark.parametrize("text", ["", "x", "-1", "10X", "10G,", ",5", "1e3"])
def test_invalid_limits_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not a size"):
        read_ship_limit(text)


def test_unchanged_files_are_not_read_again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    digest = launcher_manifest._digest
    monkeypatch.setattr(launcher_manifest, "_digest", lambda path: (read.append(path), digest(path))[1])
    monkeypatch.setattr(launcher_manifest, "_TICK_NS", -1)
    first = build_manifest(str(project), hashes=Hashes(str(tmp_path / "hashes" / "x")))
    assert len(read) == sum(isinstance(entry, File) for entry in first.entries)
    read.clear()
    assert build_manifest(str(project), hashes=Hashes(str(tmp_path / "hashes" / "x"))) == first
    assert read == []
    before = (project / "train.py").stat()
    (project / "train.py").write_text("print('HELLO')\n" * 100)
    os.utime(project / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert build_manifest(str(project), hashes=Hashes(str(tmp_path / "hashes" / "x"))) != first
    assert read == [os.fsencode(project / "train.py")]


def test_recently_changed_files_are_read_again(project: Path, tmp_path: Path) -> None:
    hashes = Hashes(str(tmp_path / "x"))
    build_manifest(str(project), hashes=hashes)
    assert hashes._seen == {}


def test_unreadable_cache_is_ignored(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").write_bytes(b"rubbish")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(launcher_manifest, "_TICK_NS", -1)
    plain = build_manifest(str(project))
    assert build_manifest(str(project), hashes=Hashes(str(tmp_path / "broken"))) == plain
    assert build_manifest(str(project), hashes=Hashes(str(tmp_path / "file" / "below"))) == plain
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build_manifest(str(project), hashes=Hashes.of(str(project))) == plain
    assert len(list((tmp_path / "xdg" / "farandole" / "ship" / "hashes").iterdir())) == 1
