"""Files that git ignores: every case is also checked with the real git."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from farandole.control.agent.file_messages import File
from farandole.control.launcher.ship.file_list import build_manifest
from farandole.control.launcher.ship.ignore import entered, outer_rules
from farandole.control.launcher.ship.missing_files import why_left_out
from farandole.errors import SpecError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git, to compare with")


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's git configuration but the test's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def git(directory: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=directory, check=True, capture_output=True, text=True).stdout


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return root


def shipped(directory: Path) -> set[str]:
    try:
        manifest = build_manifest(str(directory))
    except SpecError as error:
        assert "nothing to send" in error.message
        return set()
    return {os.fsdecode(entry.path) for entry in manifest.entries if isinstance(entry, File)}


def of_git(directory: Path) -> set[str]:
    listed = git(directory, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {name for name in listed.split("\0") if name}


LEAVES = ["a.log", "b.txt", "keep.log", "x", "x y", "#x", "!x", "data.bin", "[x]", "a-b", "\\x", "é"]
DIRECTORIES = ["", "x/", "sub/", "sub/deep/", "sub/deep/x/", "data/", "data/raw/", "build/", "foo/", "foo/foo/"]
FILES = {d + leaf: "" for d in DIRECTORIES for leaf in LEAVES if f"{d}{leaf}/" not in DIRECTORIES}


@pytest.mark.parametrize(
    "rules",
    [
        {".gitignore": "*.log\n"},
        {".gitignore": "*.log\n!keep.log\n"},
        {".gitignore": "*.log", "sub/.gitignore": "!*.log\n"},
        {".gitignore": "*.log\n", "sub/.gitignore": "!deep/\n"},
        {".gitignore": "foo\n!/foo\n"},
        {".gitignore": "data/\n!data/raw/\n!data/b.txt\n"},
        {".gitignore": "data/*\n!data/raw/\n"},
        {".gitignore": "foo/**\n!foo/foo/\n"},
        {".gitignore": "*\n!*/\n!*.txt\n"},
        {".gitignore": "/*\n!/sub/\n/sub/*\n!/sub/deep\n"},
        {".gitignore": "**/deep\n"},
        {".gitignore": "sub/**/x\n"},
        {".gitignore": "sub/*/x\n"},
        {".gitignore": "**/x/\n"},
        {".gitignore": "x/\n"},
        {".gitignore": "/x\n"},
        {".gitignore": "deep/x\n"},
        {".gitignore": "sub**\n"},
        {".gitignore": "\\#x\n\\!x\n"},
        {".gitignore": "#x\n"},
        {".gitignore": "x\\ y\n"},
        {".gitignore": "x y   \n"},
        {".gitignore": "a.log\\ \n"},
        {".gitignore": "b.txt \r\n*.bin\r\n"},
        {".gitignore": "[ab].*\n"},
        {".gitignore": "[!a-c]*\n"},
        {".gitignore": "[^[:alnum:]]*\n"},
        {".gitignore": "[[:nonsense:]]\n[unclosed\n"},
        {".gitignore": "[]x]\n\\[x\\]\n"},
        {".gitignore": "a[--b]b\n"},
        {".gitignore": "\\\\x\n"},
        {".gitignore": "x\\\n"},
        {".gitignore": "??\n"},
        {".gitignore": "/\n//\n!\n\n   \n"},
        {".gitignore": "\ufeff*.log\n"},
        {".git/info/exclude": "*.log\n", ".gitignore": "!keep.log\n"},
        {".git/info/exclude": "/sub\n"},
    ],
    ids=lambda rules: repr(list(rules.values())),
)
def test_patterns_agree_with_git(rules: dict[str, str], tmp_path: Path) -> None:
    root = lay_out(tmp_path / "project", FILES)
    git(root, "init", "-q")
    lay_out(root, rules)
    assert shipped(root) == of_git(root)


PIECES = ["*", "**", "?", "x", "foo", "sub", "deep", "data", "/", "/", ".log", "[a-x]", "[!a]", "a", "\\*", "***"]


def a_pattern(dice: random.Random) -> str:
    negation = "!" if dice.random() < 0.3 else ""
    body = "".join(dice.choices(PIECES, k=dice.randint(1, 5)))
    return negation + body + ("/" if dice.random() < 0.2 else "")


@pytest.mark.parametrize("seed", range(60))
def test_random_patterns_agree_with_git(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    root = lay_out(tmp_path / "project", FILES)
    git(root, "init", "-q")
    for place in dice.sample(["", "sub/", "sub/deep/", "data/", "foo/", ".git/info/exclude"], 3):
        name = place if place.endswith("exclude") else place + ".gitignore"
        lay_out(root, {name: "\n".join(a_pattern(dice) for _ in range(dice.randint(1, 4)))})
    rules = {str(path): path.read_text() for path in root.rglob(".gitignore")}
    assert shipped(root) == of_git(root), rules


def test_rules_above_the_directory_apply(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path / "repository",
        {
            ".gitignore": "*.ckpt\n/lab/secret\n",
            "lab/a.py": "",
            "lab/a.ckpt": "",
            "lab/secret": "",
            "lab/in/secret": "",
        },
    )
    git(root, "init", "-q")
    assert shipped(root / "lab") == of_git(root / "lab") == {"a.py", "in/secret"}


def test_a_directory_that_is_itself_ignored_can_be_sent(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "repository", {".gitignore": "/build/\n", "build/a.py": ""})
    git(root, "init", "-q")
    assert shipped(root / "build") == {"a.py"}


def test_user_rules_apply_in_repository(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "repository", {"a.py": "", ".env": "", "b.swp": ""})
    lay_out(tmp_path / "home", {".config/git/ignore": ".env\n"})
    assert ".env" in shipped(root)  # Not a repository yet.
    git(root, "init", "-q")
    assert shipped(root) == of_git(root) == {"a.py", "b.swp"}
    lay_out(tmp_path / "home", {".gitconfig": "[core]\nexcludesFile = ~/mine\n", "mine": "*.swp\n"})
    assert shipped(root) == of_git(root) == {"a.py", ".env"}


def test_linked_working_tree_uses_main_exclude_file(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "repository", {"a.py": ""})
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    git(root, "worktree", "add", "-q", str(tmp_path / "other"))
    lay_out(root, {".git/info/exclude": "*.bin\n"})
    other = lay_out(tmp_path / "other", {"a.bin": ""})
    assert shipped(other) == of_git(other) == {"a.py"}


def test_tracked_files_are_not_ignored(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "repository", {".gitignore": "data/\n", "data/README": "", "data/x.bin": ""})
    git(root, "init", "-q")
    git(root, "add", "--force", "data/README", ".gitignore")
    assert shipped(root) == of_git(root) == {".gitignore", "data/README"}
    manifest = build_manifest(str(root))
    assert why_left_out(manifest, "data/README") is None
    assert why_left_out(manifest, "data/x.bin") == "line 1 of .gitignore says `data/`"


def test_without_a_repository_gitignore_files_count(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "project", {".gitignore": "*.bin\n", "a.bin": "", "b.py": "", "sub/a.bin": ""})
    assert shipped(root) == {".gitignore", "b.py"}


def test_git_directories_are_always_excluded(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "project", {"a.py": "", "module/b.py": "", "module/.git": "gitdir: ../x\n"})
    git(root, "init", "-q")
    assert shipped(root) == {"a.py", "module/b.py"}


def test_unreadable_rules_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay_out(tmp_path / "project", {".gitignore": "*.bin\n"})
    monkeypatch.setattr("builtins.open", _refuse)
    with pytest.raises(SpecError, match=r"\.gitignore cannot be read: Permission denied"):
        entered((), os.fsencode(root), os.fsencode(root))


def _refuse(*arguments: object) -> object:
    raise PermissionError(13, "Permission denied")


def test_linked_gitignore_is_not_read(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "project", {"rules": "*.bin\n", "a.bin": ""})
    (root / ".gitignore").symlink_to("rules")
    assert shipped(root) == {"rules", "a.bin"}
    assert outer_rules(os.fsencode(root)) == ()
