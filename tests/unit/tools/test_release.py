"""Steps of a release, on a copy of the files that they change and on files that stand for built ones."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release" / "release.py")
assert spec and spec.loader
release = importlib.util.module_from_spec(spec)
sys.modules["release"] = release
spec.loader.exec_module(release)

FILES = (
    "farandole-0.2.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "farandole-0.2.0-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
    "farandole-0.2.0.tar.gz",
    "farandole_horovod-0.29.0-py3-none-any.whl",
    "farandole_horovod-0.29.0.tar.gz",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the files in which the version is written."""
    for place in release.PLACES:
        copy = tmp_path / place.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.file, copy)
    return tmp_path


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(name)
    return folder


def test_all_places_have_the_same_version_now() -> None:
    assert len(set(release.written(ROOT).values())) == 1


def test_the_version_of_a_tag_is_written_into_every_place(project: Path) -> None:
    release.write_version("v1.22.333", project)
    assert set(release.written(project).values()) == {"1.22.333"}
    # Nothing else has changed: written back, the files are as they were.
    release.write_version("v" + release.written(ROOT).popitem()[1], project)
    for place in release.PLACES:
        assert (project / place.file).read_text() == (ROOT / place.file).read_text()


@pytest.mark.parametrize("tag", ["0.2.0", "v0.2", "v0.2.0rc1", "v0.2.0 "])
def test_what_names_no_version_is_refused(tag: str) -> None:
    with pytest.raises(release.ReleaseError, match=r"tags are like v0\.2\.0"):
        release.version_of(tag)


def test_a_file_that_is_missing_or_there_twice_is_named(project: Path, dist: Path) -> None:
    release.write_version("v0.2.0", project)
    (dist / FILES[1]).unlink()
    with pytest.raises(release.ReleaseError, match=r"0 files .*aarch64.* instead of one; run `make clean wheel`"):
        release.check("v0.2.0", project, dist)
    (dist / "farandole_horovod-0.28.0.tar.gz").write_text("")
    (dist / FILES[1]).write_text("")
    with pytest.raises(release.ReleaseError, match="2 files farandole_horovod"):
        release.check("v0.2.0", project, dist)


def test_files_of_another_version_than_the_sources_are_refused(project: Path, dist: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"v0\.2\.0 is to be released; run the step version"):
        release.check("v0.2.0", project, dist)


def test_the_signed_sums_are_those_of_the_files(dist: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    if not shutil.which("ssh-keygen"):
        pytest.skip("no ssh-keygen on this machine")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=30)
    sums = release.write_sums("v0.2.0", dist)
    assert [line.split("  ")[1] for line in sums.read_text().splitlines()] == sorted(FILES)
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", sums.name], cwd=dist, check=True, timeout=30)
    signature = release.sign(key, dist)
    signers = tmp_path / "signers"
    signers.write_text(f"us {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "us", "-n", release.NAMESPACE, "-s", signature]
    for text, code in ((sums.read_bytes(), 0), (sums.read_bytes() + b"x", 255)):
        assert subprocess.run(verify, input=text, capture_output=True, check=False, timeout=30).returncode == code


def test_signing_without_a_key_says_what_is_missing(dist: Path) -> None:
    with pytest.raises(release.ReleaseError, match="signing needs --key"):
        release.sign(None, dist)


def test_the_plan_names_every_step_once_and_in_order() -> None:
    lines = release.plan("v0.2.0").splitlines()
    assert [line.split(".")[0].strip() for line in lines[::2]] == [str(number) for number in range(1, 12)]
    steps = ("version v0.2.0", "changelog", "make clean wheel", "check", "sbom", "sums", "sign", "twine upload")
    places = [next(i for i, line in enumerate(lines) if step in line and i % 2) for step in steps]
    assert places == sorted(places)


def test_the_changelog_is_drafted_from_all_fragments() -> None:
    if importlib.util.find_spec("towncrier") is None:
        pytest.skip("towncrier is not installed; `make check` installs it")
    before = (ROOT / "CHANGELOG.md").read_bytes()
    draft = release.write_changelog("v0.2.0", draft=True)
    assert "## 0.2.0" in draft and "`make wheel` builds" in draft
    assert (ROOT / "CHANGELOG.md").read_bytes() == before


def test_a_bill_names_what_is_linked_into_the_libraries() -> None:
    bill = {"bomFormat": "CycloneDX", "components": [{"name": "farandole"}, {"name": "msgspec"}]}
    filled = release.components(bill, "0.2.0", "0.17.1")
    assert [each["name"] for each in filled["components"]] == [
        "msgspec",
        "libc++, libc++abi, libunwind, compiler-rt",
    ]
    assert filled["metadata"]["component"]["version"] == "0.2.0"
