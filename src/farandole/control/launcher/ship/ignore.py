"""Decides which files git ignores, and by which rule.

The rules are git's own, as in gitignore(5) and git's dir.c and wildmatch.c. Each directory and file is judged by
itself, from the root down, and the content of an ignored directory is never examined:

- the rules of one file are tried from the last line to the first, and the first that matches decides;
- the .gitignore of the innermost directory comes first, then those of the directories above it, up to the top of the
  repository, then .git/info/exclude, then the user's own file (core.excludesFile). A file without a rule for a path
  leaves it to the next.

Libraries match a path by the patterns of its parent directories as well, so that `!sub/` in one file
exempts `sub/a.log` from `*.log` in the next one; git does not. So the patterns are translated here.

Paths are bytes, as in git: a `?` matches one byte.
"""

from __future__ import annotations

import os
import re
import shutil
import string
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from farandole.errors import SpecError

_ANYTHING = b".*"
_WITHIN_NAME = b"[^/]*"
_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, [*range(32), 127])),
    b"digit": string.digits,
    b"graph": string.ascii_letters + string.digits + string.punctuation,
    b"lower": string.ascii_lowercase,
    b"print": string.ascii_letters + string.digits + string.punctuation + " ",
    b"punct": string.punctuation,
    b"space": string.whitespace,
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}


@dataclass(frozen=True)
class Rule:
    """One line of a file of rules."""

    file: str
    """The name of the rule's file in messages."""
    line: int
    text: str
    ignores: bool
    """Whether it ignores the paths that it matches; otherwise it includes them again (`!`)."""
    only_directories: bool
    by_name: bool
    """Whether it only matches the last component of a path."""
    regex: re.Pattern[bytes]

    def __str__(self) -> str:
        return f"line {self.line} of {self.file} says `{self.text}`"


class RuleFile:
    """The rules of one file.

    Args:
        base: the directory that the rules apply to, as an absolute path.
        file: the name of the file in messages.
        content: the content of the file.
    """

    def __init__(self, base: bytes, file: str, content: bytes) -> None:
        self._skip = len(base.rstrip(b"/")) + 1
        self._rules = [rule for rule in _rules(file, content) if rule is not None]
        self._rules.reverse()
        # Most paths match no rule, which two searches show.
        self._any_name = _any_of([rule.regex for rule in self._rules if rule.by_name])
        self._any_path = _any_of([rule.regex for rule in self._rules if not rule.by_name])

    def decide(self, path: bytes, is_directory: bool) -> Rule | None:
        """Return the rule that decides about an absolute path below the base, if there is one."""
        relative = path[self._skip :]
        name = relative.rpartition(b"/")[2]
        if not self._any_name.fullmatch(name) and not self._any_path.fullmatch(relative):
            return None
        for rule in self._rules:
            if rule.only_directories and not is_directory:
                continue
            if rule.regex.fullmatch(name if rule.by_name else relative):
                return rule
        return None


Rules = tuple[RuleFile, ...]
"""Files of rules, from the innermost to the outermost."""


def decide(rules: Rules, path: bytes, is_directory: bool) -> Rule | None:
    """Return the rule that decides about an absolute path, whose parent directory is not ignored."""
    for file in rules:
        if (rule := file.decide(path, is_directory)) is not None:
            return rule
    return None


# --- files of rules ------------------------------------------------------------------------------------------------


def outer_rules(root: bytes) -> Rules:
    """Return the rules for a directory from the directories above it; `entered` adds those of subdirectories."""
    top = repository_of(root)
    if top is None:
        return ()
    rules: Rules = ()
    for base, path in ((top, _users_rules(top)), (top, _info_exclude(top))):
        if path is not None:
            rules = (*_read(base, path, os.fsdecode(path)), *rules)
    between = []
    directory = root
    while directory != top:
        directory = os.path.dirname(directory)
        between.append(directory)
    for directory in reversed(between):
        rules = entered(rules, directory, root)
    return rules


def entered(rules: Rules, directory: bytes, root: bytes) -> Rules:
    """Return the rules within a directory, given the rules for the directory itself."""
    path = os.path.join(directory, b".gitignore")
    # As git does: links in an untrusted repository could lead out of it.
    if not os.path.lexists(path) or os.path.islink(path):
        return rules
    return (*_read(directory, path, os.fsdecode(os.path.relpath(path, root))), *rules)


def repository_of(directory: bytes) -> bytes | None:
    """Return the top of the git repository that a directory is in, if it is in one."""
    while not os.path.lexists(os.path.join(directory, b".git")):
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above
    return directory


def tracked_though_ignored(root: bytes) -> list[bytes]:
    """Return the files below `root`, relative to it, that match an ignore rule but are in the repository anyway."""
    if repository_of(root) is None:
        return []
    listed = _git(root, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
    return [] if listed is None else [path for path in listed.split(b"\0") if path]


def _info_exclude(top: bytes) -> bytes | None:
    git = os.path.join(top, b".git")
    if os.path.isfile(git):  # A further working tree, or a submodule.
        found = re.match(rb"gitdir: (.*)", _content(git))
        if found is None:
            return None
        git = os.path.join(top, found[1])
        common = os.path.join(git, b"commondir")
        if os.path.exists(common):
            git = os.path.join(git, _content(common).rstrip(b"\n"))
    return os.path.normpath(os.path.join(git, b"info", b"exclude"))


def _users_rules(top: bytes) -> bytes:
    named = _git(top, "config", "--path", "--get", "core.excludesFile")
    if named is not None:
        return os.path.join(top, named.rstrip(b"\n"))
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(os.fsencode(base), b"git", b"ignore")


def _git(directory: bytes, *arguments: str) -> bytes | None:
    """Return the output of git; None if git is not installed, or fails."""
    program = shutil.which("git")
    if program is None:
        return None
    done = subprocess.run([program, *arguments], cwd=directory, capture_output=True, stdin=subprocess.DEVNULL)
    return done.stdout if done.returncode == 0 else None


def _read(base: bytes, path: bytes, name: str) -> Rules:
    return (RuleFile(base, name, _content(path)),) if os.path.isfile(path) else ()


def _content(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        # Without the rules, files would be sent that the user wants to keep here.
        raise SpecError(f"{os.fsdecode(path)} cannot be read: {error.strerror}") from None


# --- lines ----------------------------------------------------------------------------------------------------------


def _rules(file: str, content: bytes) -> list[Rule | None]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [_rule(file, number, line.removesuffix(b"\r")) for number, line in enumerate(lines, 1)]


def _rule(file: str, number: int, line: bytes) -> Rule | None:
    if not line or line.startswith(b"#"):
        return None
    line = _without_trailing_spaces(line)
    pattern = line.removeprefix(b"!")
    only_directories = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    by_name = b"/" not in pattern
    regex = _regex(pattern.removeprefix(b"/"), by_name) if pattern else None
    if regex is None:
        return None
    text = line.decode("utf-8", "replace")
    return Rule(file, number, text, not line.startswith(b"!"), only_directories, by_name, re.compile(regex, re.DOTALL))


def _without_trailing_spaces(line: bytes) -> bytes:
    """Remove trailing spaces, except after a backslash."""
    stripped = line.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return line[: len(stripped) + 1] if backslashes % 2 and len(stripped) < len(line) else stripped


def _any_of(patterns: Sequence[re.Pattern[bytes]]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(b"(?:%s)" % each.pattern for each in patterns) or b"(?!)", re.DOTALL)


# --- patterns -------------------------------------------------------------------------------------------------------


def _regex(pattern: bytes, by_name: bool) -> bytes | None:
    """Translate a pattern; None if it can match nothing."""
    parts = []
    # Git first compares the part before the first wildcard, and treats the rest as a separate pattern.
    found = re.search(rb"[*?[\\]", pattern)
    beginning = found.start() if found else len(pattern)
    at = 0
    while at < len(pattern):
        character = pattern[at : at + 1]
        if character == b"*":
            regex, at = _stars(pattern, at, beginning, by_name)
        elif character == b"?":
            regex, at = b"[^/]", at + 1
        elif character == b"[":
            members, at = _bracket(pattern, at)
            if members is None:
                return None
            regex = _one_of(members)
        else:
            at += character == b"\\"
            if at == len(pattern):
                return None
            regex, at = re.escape(pattern[at : at + 1]), at + 1
        parts.append(regex)
    return b"".join(parts)


def _stars(pattern: bytes, start: int, beginning: int, by_name: bool) -> tuple[bytes, int]:
    """Translate a run of stars; return the translation and the index after the run."""
    end = start
    while pattern[end : end + 1] == b"*":
        end += 1
    at_start = start == beginning or pattern[start - 1 : start] == b"/"
    at_end = pattern[end : end + 1] in (b"", b"/")
    if by_name or end - start == 1 or not (at_start and at_end):
        return _WITHIN_NAME, end
    if end == len(pattern):
        return _ANYTHING, end
    return b"(?:.*/)?", end + 1


def _bracket(pattern: bytes, start: int) -> tuple[set[int] | None, int]:
    """Parse `[...]`; return the bytes that it matches and the index after it. None if it is malformed."""
    at = start + 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    previous: int | None = None
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        if at >= len(pattern):
            return None, at
        if (
            pattern[at : at + 2] == b"[:"
            and (end := pattern.find(b"]", at + 2)) > at + 2
            and pattern[end - 1] == ord(":")
        ):
            named = _CLASSES.get(pattern[at + 2 : end - 1])
            if named is None:
                return None, at
            members.update(named.encode())
            previous, at = None, end + 1
        elif pattern[at] == ord("-") and previous is not None and pattern[at + 1 : at + 2] not in (b"", b"]"):
            last, at = _member(pattern, at + 1)
            members.update(range(previous, last + 1) if last is not None else ())
            previous = None
        else:
            previous, at = _member(pattern, at)
            members.update(() if previous is None else (previous,))
    return (set(range(256)) - members if negated else members) - {ord("/")}, at + 1


def _member(pattern: bytes, at: int) -> tuple[int | None, int]:
    """Parse one character of a bracket, possibly with a preceding backslash."""
    at += pattern[at] == ord("\\")
    return (pattern[at], at + 1) if at < len(pattern) else (None, at)


def _one_of(members: set[int]) -> bytes:
    return b"[%s]" % b"".join(b"\\x%02x" % each for each in sorted(members)) if members else b"(?!)"
