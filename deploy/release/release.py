"""Make a release, one step at a time; each can be run by hand, and none of them sends anything anywhere.

    python deploy/release/release.py plan v0.2.0            # all steps, and the commands behind them
    python deploy/release/release.py version v0.2.0         # write the version where it is written
    python deploy/release/release.py changelog v0.2.0       # CHANGELOG.md from the fragments of changes/
    python deploy/release/release.py check v0.2.0           # what dist/ holds, and that it is this version
    python deploy/release/release.py sbom v0.2.0            # dist/farandole-0.2.0.cdx.json
    python deploy/release/release.py provenance v0.2.0      # dist/farandole-0.2.0.provenance.json
    python deploy/release/release.py sums v0.2.0            # dist/SHA256SUMS
    python deploy/release/release.py sign v0.2.0 --key KEY  # dist/SHA256SUMS.sig, by ssh-keygen

`make wheel` builds what these look at. docs/contributing/releasing.md says what to do around them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "farandole-release"
"""What the signature is for: ssh-keygen refuses it for anything else."""
BUILT_BY = ("ziglang", "cmake", "ninja", "scikit-build-core", "hatchling", "auditwheel")
"""The packages whose versions decide what is in the files."""


class ReleaseError(Exception):
    """A step cannot be made. The message ends with what to do."""


class Place(NamedTuple):
    """A file in which the version is written, and the words around it."""

    file: str
    pattern: str


PLACES = (
    Place("CMakeLists.txt", r"(project\(farandole VERSION )([0-9.]+)"),
    Place("compat/horovod/pyproject.toml", r"(farandole==)([0-9.]+)"),
    Place("deploy/helm/farandole-operator/Chart.yaml", r"(\bversion: )([0-9.]+)"),
    Place("deploy/helm/farandole-operator/Chart.yaml", r"(\bappVersion: )([0-9.]+)"),
    Place("deploy/helm/farandole-operator/values.yaml", r"(farandole/operator:)([0-9.]+)"),
)


# --- what is decided without running anything ------------------------------------------------------------------------


def version_of(tag: str) -> str:
    """Return the version that a tag names.

    Example:
        >>> version_of("v0.2.0")
        '0.2.0'
    """
    found = re.fullmatch(r"v([0-9]+\.[0-9]+\.[0-9]+)", tag)
    if not found:
        raise ReleaseError(f"{tag!r} names no version; tags are like v0.2.0")
    return found[1]


def written(root: Path) -> dict[str, str]:
    """Return the version that each place has, by the place."""
    versions = {}
    for place in PLACES:
        found = re.search(place.pattern, (root / place.file).read_text())
        if not found:
            raise ReleaseError(f"{place.file} has no version any more; mend PLACES in {Path(__file__).name}")
        versions[f"{place.file}: {found[1].strip()}"] = found[2]
    return versions


def files_of(version: str) -> list[str]:
    """Return patterns of the files that a release has; each must match one.

    farandole-horovod has a version of its own, which says of which Horovod it has the names.
    """
    return [
        f"farandole-{version}-py3-none-*manylinux_2_17_x86_64*.whl",
        f"farandole-{version}-py3-none-*manylinux_2_17_aarch64*.whl",
        f"farandole-{version}.tar.gz",
        "farandole_horovod-*-py3-none-any.whl",
        "farandole_horovod-*.tar.gz",
    ]


def plan(tag: str) -> str:
    """Return all steps of a release with their commands, in order."""
    version, script = version_of(tag), "python deploy/release/release.py"
    steps = [
        ("write the version", f"{script} version {tag}"),
        ("write the changelog", f"{script} changelog {tag}"),
        ("look, commit and tag", f"git commit -am 'Release {version}' && git tag -s {tag} -m 'farandole {version}'"),
        ("build", "make clean wheel"),
        ("run the native tests as zig builds them", "make wheel-test"),
        (
            "install into bare environments, and try these steps on small files",
            "FARANDOLE_WHEEL=$(ls dist/*_x86_64.whl) pytest tests/integration/test_wheel.py tests/unit/tools",
        ),
        ("check", f"{script} check {tag}"),
        ("list what is inside", f"{script} sbom {tag}"),
        ("say of what they were built", f"{script} provenance {tag}"),
        ("sums", f"{script} sums {tag}"),
        ("sign", f"{script} sign {tag} --key ~/.ssh/id_ed25519"),
        ("publish", "git push origin " + tag + " && twine upload dist/*.whl dist/*.tar.gz"),
    ]
    return "\n".join(f"{number:2}. {what}\n      {command}" for number, (what, command) in enumerate(steps, 1))


def components(bill: dict[str, Any], version: str, zig: str) -> dict[str, Any]:
    """Return a bill of materials with what is linked into the libraries, which no Python package names."""
    inside = {
        "type": "library",
        "bom-ref": f"llvm-runtime-of-zig-{zig}",
        "name": "libc++, libc++abi, libunwind, compiler-rt",
        "version": f"of zig {zig}",
        "description": "LLVM's runtime, linked into the libraries of the wheels",
        "licenses": [{"expression": "Apache-2.0 WITH LLVM-exception"}],
        "scope": "required",
    }
    metadata = bill.get("metadata", {}) | {
        "component": {"type": "library", "bom-ref": "farandole", "name": "farandole", "version": version}
    }
    others = [each for each in bill.get("components", []) if each.get("name") != "farandole"]
    return bill | {"metadata": metadata, "components": [*others, inside]}


def statement(digests: Mapping[str, str], commit: str, tag: str, tools: Mapping[str, str]) -> dict[str, Any]:
    """Return an in-toto statement of where files come from, with the predicate of SLSA's provenance, version 1.

    Args:
        digests: SHA-256 of each file, by its name.
        commit: from which they were built.
        tag: of the release.
        tools: the versions of the packages that built them, by name.
    """
    sources = [{"name": "farandole", "digest": {"gitCommit": commit}}]
    packages = [{"uri": f"pkg:pypi/{name}@{version}"} for name, version in tools.items()]
    definition = {
        "buildType": "urn:farandole:make-wheel:v1",
        "externalParameters": {"tag": tag, "command": "make clean wheel"},
        "resolvedDependencies": [*sources, *packages],
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": {"id": "urn:farandole:by-hand"}}},
    }


# --- steps -----------------------------------------------------------------------------------------------------------


def run(*command: object) -> str:
    """Run a command and return its output; ReleaseError with what it said where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def write_version(tag: str, root: Path) -> None:
    """Write the tag's version into each place."""
    version = version_of(tag)
    written(root)
    for place in PLACES:
        file = root / place.file
        file.write_text(re.sub(place.pattern, rf"\g<1>{version}", file.read_text(), count=1))


def write_changelog(tag: str, draft: bool) -> str:
    """Collect the fragments of changes/ with towncrier; a draft changes no file."""
    return run(
        sys.executable, "-m", "towncrier", "build", "--version", version_of(tag), "--draft" if draft else "--yes"
    )


def check(tag: str, root: Path, dist: Path) -> list[Path]:
    """Return the release's files; ReleaseError unless all are there, of this version, and well formed."""
    version = version_of(tag)
    if others := {place: found for place, found in written(root).items() if found != version}:
        place, found = next(iter(others.items()))
        raise ReleaseError(f"{place} is {found}, and {tag} is to be released; run the step version")
    files = []
    for pattern in files_of(version):
        matches = sorted(dist.glob(pattern))
        if len(matches) != 1:
            raise ReleaseError(f"{dist} has {len(matches)} files {pattern} instead of one; run `make clean wheel`")
        files += matches
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return files


def write_bill(tag: str, dist: Path) -> Path:
    """Write a bill of materials in CycloneDX's format: what the wheel needs, and what is inside of it."""
    version = version_of(tag)
    wheels = [*dist.glob(f"farandole-{version}-*_x86_64*.whl"), *dist.glob("farandole_horovod-*.whl")]
    if len(wheels) != 2:
        raise ReleaseError(f"{dist} lacks the wheel for x86_64 or that of farandole-horovod; run `make clean wheel`")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = Path(folder) / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--constraint", "constraints.txt")
        run(*pip, *wheels)
        bill = json.loads(run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", python))
    file = dist / f"farandole-{version}.cdx.json"
    file.write_text(json.dumps(components(bill, version, installed("ziglang")), indent=2) + "\n")
    return file


def installed(package: str) -> str:
    """Return the version of a package that is installed here, where the files are built."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ReleaseError(f"{package} is not installed; `make wheel` installs what builds the files") from None


def digests_of(version: str, dist: Path, *more: str) -> dict[str, str]:
    """Return the SHA-256 of each file of the release that is there, by its name."""
    files = sorted({file for pattern in (*files_of(version), *more) for file in dist.glob(pattern)})
    if not files:
        raise ReleaseError(f"{dist} has no files of {version}; run `make wheel`")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def write_provenance(tag: str, root: Path, dist: Path) -> Path:
    """Write of which commit, and by which tools, the files were built.

    The statement is as good as the word of the person who builds; the signature of the sums covers it.
    """
    version = version_of(tag)
    if changed := run("git", "-C", root, "status", "--porcelain").strip():
        raise ReleaseError(f"these files are not as they were committed, so no commit says what was built:\n{changed}")
    commit = run("git", "-C", root, "rev-parse", "HEAD").strip()
    tagged = run("git", "-C", root, "for-each-ref", "--format=%(*objectname)%(objectname)", f"refs/tags/{tag}").strip()
    if tagged and not tagged.startswith(commit):
        raise ReleaseError(f"{tag} is another commit than {commit}, which is checked out; git switch --detach {tag}")
    told = statement(digests_of(version, dist), commit, tag, {name: installed(name) for name in BUILT_BY})
    file = dist / f"farandole-{version}.provenance.json"
    file.write_text(json.dumps(told, indent=2) + "\n")
    return file


def write_sums(tag: str, dist: Path) -> Path:
    """Write the digests of all files of the release, as sha256sum --check reads them."""
    version = version_of(tag)
    digests = digests_of(version, dist, f"farandole-{version}.cdx.json", f"farandole-{version}.provenance.json")
    sums = dist / "SHA256SUMS"
    sums.write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    return sums


def sign(key: Path | None, dist: Path) -> Path:
    """Sign the sums with an SSH key; what `docs/contributing/releasing.md` says verifies it."""
    sums = dist / "SHA256SUMS"
    if key is None or not key.exists() or not sums.exists():
        raise ReleaseError("signing needs --key with a private key of ssh's, and dist/SHA256SUMS from the step sums")
    signature = dist / "SHA256SUMS.sig"
    signature.unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, sums)
    return signature


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one step; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=("plan", "version", "changelog", "check", "sbom", "provenance", "sums", "sign"))
    parser.add_argument("tag", help="such as v0.2.0")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder of the files to be released")
    parser.add_argument("--draft", action="store_true", help="changelog: print it, and change no file")
    parser.add_argument("--key", type=Path, help="sign: a private key of ssh's")
    given = parser.parse_args(arguments)
    steps = {
        "plan": lambda: plan(given.tag),
        "version": lambda: write_version(given.tag, ROOT) or "written; look at it with git diff",
        "changelog": lambda: write_changelog(given.tag, given.draft),
        "check": lambda: "\n".join(file.name for file in check(given.tag, ROOT, given.dist)),
        "sbom": lambda: write_bill(given.tag, given.dist),
        "provenance": lambda: write_provenance(given.tag, ROOT, given.dist),
        "sums": lambda: write_sums(given.tag, given.dist),
        "sign": lambda: sign(given.key, given.dist),
    }
    try:
        print(steps[given.step]())
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
