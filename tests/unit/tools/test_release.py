"""Steps of a release, on a copy of the files that they change and on files that stand for built ones."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
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
    assert [line.split(".")[0].strip() for line in lines[::2]] == [str(number) for number in range(1, 13)]
    steps = (
        "version v0.2.0",
        "changelog",
        "make clean wheel",
        "check",
        "sbom",
        "provenance",
        "sums",
        "sign",
        "twine upload",
    )
    places = [next(i for i, line in enumerate(lines) if step in line and i % 2) for step in steps]
    assert places == sorted(places)


def test_the_changelog_is_drafted_from_all_fragments() -> None:
    if importlib.util.find_spec("towncrier") is None:
        pytest.skip("towncrier is not installed; `make check` installs it")
    before = (ROOT / "CHANGELOG.md").read_bytes()
    draft = release.write_changelog("v0.2.0", draft=True)
    fragments = [file.read_text().split() for file in sorted((ROOT / "changes").glob("+*.md"))]
    assert "## 0.2.0" in draft
    assert [words for words in fragments if " ".join(words) not in " ".join(draft.split())] == []
    assert (ROOT / "CHANGELOG.md").read_bytes() == before


def test_a_bill_names_what_is_linked_into_the_libraries() -> None:
    bill = {"bomFormat": "CycloneDX", "components": [{"name": "farandole"}, {"name": "msgspec"}]}
    filled = release.components(bill, "0.2.0", "0.17.1")
    assert [each["name"] for each in filled["components"]] == [
        "msgspec",
        "libc++, libc++abi, libunwind, compiler-rt",
    ]
    assert filled["metadata"]["component"]["version"] == "0.2.0"


# --- on distributions that are small, but real ------------------------------------------------------------------------

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: One file
License: Apache-2.0
Description-Content-Type: text/markdown

It has one file.
"""


def write_distribution(path: Path) -> None:
    """Write a wheel or source distribution of one file, with the name and version that its file name says."""
    name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
    metadata = METADATA.format(name=name, version=version)
    if path.suffix == ".gz":
        with tarfile.open(path, "w:gz") as archive:
            for file, text in (("PKG-INFO", metadata), ("pyproject.toml", "")):
                member = tarfile.TarInfo(f"{name}-{version}/{file}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        return
    tags = path.stem.split("-", 2)[2]
    information = f"{name}-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tags}\n"
    files = {f"{name}/__init__.py": "", f"{information}/METADATA": metadata, f"{information}/WHEEL": wheel}
    record = "".join(f"{each},,\n" for each in [*files, f"{information}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**files, f"{information}/RECORD": record}.items():
            archive.writestr(each, text)


@pytest.fixture
def distributions(tmp_path: Path) -> Path:
    """Return a folder with all files of a release, which twine and pip accept."""
    for package in ("twine", "cyclonedx_py", "ziglang"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; `make wheel` installs it")
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in FILES:
        write_distribution(folder / name)
    return folder


def test_files_that_twine_accepts_pass_and_others_do_not(project: Path, distributions: Path) -> None:
    release.write_version("v0.2.0", project)
    assert [file.name for file in release.check("v0.2.0", project, distributions)] == list(FILES)
    (distributions / FILES[0]).write_text("no wheel")
    with pytest.raises(release.ReleaseError, match="twine check"):
        release.check("v0.2.0", project, distributions)


def test_the_bill_is_of_what_pip_installs_with_the_wheels(distributions: Path) -> None:
    bill = json.loads(release.write_bill("v0.2.0", distributions).read_text())
    names = [each["name"] for each in bill["components"]]
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["version"] == "0.2.0"
    assert names == ["farandole_horovod", "libc++, libc++abi, libunwind, compiler-rt"]


def test_the_provenance_names_the_commit_the_tools_and_each_file(distributions: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources"

    def git(*words: str) -> str:
        told = subprocess.run(["git", "-C", sources, *words], capture_output=True, text=True, check=True, timeout=30)
        return told.stdout.strip()

    sources.mkdir()
    git("init", "-q")
    git("config", "user.email", "a@b")
    git("config", "user.name", "a")
    (sources / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    told = json.loads(release.write_provenance("v0.2.0", sources, distributions).read_text())
    assert [each["name"] for each in told["subject"]] == sorted(FILES)
    digest = hashlib.sha256((distributions / FILES[2]).read_bytes()).hexdigest()
    assert {"name": FILES[2], "digest": {"sha256": digest}} in told["subject"]
    source, *packages = told["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"]["gitCommit"] == git("rev-parse", "HEAD")
    assert packages[0]["uri"].startswith("pkg:pypi/ziglang@")
    names = [line.split("  ")[1] for line in release.write_sums("v0.2.0", distributions).read_text().splitlines()]
    assert "farandole-0.2.0.provenance.json" in names

    git("tag", "-a", "v0.2.0", "-m", "x")
    release.write_provenance("v0.2.0", sources, distributions)
    (sources / "file").write_text("two")
    with pytest.raises(release.ReleaseError, match="not as they were committed"):
        release.write_provenance("v0.2.0", sources, distributions)
    git("commit", "-q", "-a", "-m", "two")
    with pytest.raises(release.ReleaseError, match=r"v0\.2\.0 is another commit"):
        release.write_provenance("v0.2.0", sources, distributions)
