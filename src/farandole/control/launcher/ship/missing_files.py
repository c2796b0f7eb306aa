"""Explains why a file of this machine is missing on the workers' hosts: a rule excluded it from `--ship`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from farandole.control.agent.command_check import python_script
from farandole.control.launcher.ship.file_list import Manifest
from farandole.control.launcher.ship.ignore import decide, entered, outer_rules, tracked_though_ignored
from farandole.errors import SpecError

_SAYS_MISSING = re.compile(
    r"no such file|not ?found|no module named|(?:does not|doesn't) exist|(?:cannot|can't|unable to|failed to) open",
    re.IGNORECASE,
)
_MISSING = re.compile(r"No such file or directory: ['\"]([^'\"\n]+)['\"]")
_QUOTED = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"")
# The form of the C library's perror and of the shell's programs: `cat: data.bin: No such file or directory`.
_UNQUOTED = re.compile(r"(\S+): No such file or directory")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_MOST_CANDIDATES = 50


def why_left_out(manifest: Manifest, path: str) -> str | None:
    """Return why an existing file or directory was not sent; None if it was sent, or does not exist here.

    Args:
        manifest: the content that was sent.
        path: an absolute path, or one relative to the directory that was sent.

    Example: "line 3 of .gitignore says `*.bin`"
    """
    if not os.path.lexists(os.path.join(manifest.root, os.fsencode(path))):
        return None
    relative = _relative(manifest, path)
    if relative is None:
        return f"it is outside the directory that was sent, {os.fsdecode(manifest.root)}"
    if relative == b"." or _is_sent(manifest, relative):
        return None
    if manifest.is_output(relative):
        return "the output of workers is never sent"
    return _rule_against(manifest.root, relative)


def _relative(manifest: Manifest, path: str) -> bytes | None:
    """Return a path relative to the root, without resolving a link at its end; None if it is not below the root."""
    absolute = os.path.normpath(os.path.join(manifest.root, os.fsencode(path)))
    if absolute == manifest.root:
        return b"."
    absolute = os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))
    relative = os.path.relpath(absolute, manifest.root)
    return None if relative.split(b"/")[0] == b".." else relative


def _is_sent(manifest: Manifest, relative: bytes) -> bool:
    return any(entry.path == relative or entry.path.startswith(relative + b"/") for entry in manifest.entries)


def _rule_against(root: bytes, relative: bytes) -> str | None:
    rules = outer_rules(root)
    directory = root
    for part in relative.split(b"/"):
        if part == b".git":
            return "git's own files (.git) are never sent"
        rules = entered(rules, directory, root)
        directory = os.path.join(directory, part)
        rule = decide(rules, directory, os.path.isdir(directory) and not os.path.islink(directory))
        if rule is not None and rule.ignores:
            return None if relative in tracked_though_ignored(root) else str(rule)
    if os.path.isfile(directory) or os.path.isdir(directory):
        return "it did not exist when the job started"
    return "it is neither a file, a directory nor a link"


def hint_for_missing(text: str, manifest: Manifest, where: str = "", directories: Sequence[str] = ()) -> str:
    """Return a hint for a failure that names an existing file or module that was not sent; "" if it names none.

    Args:
        text: the worker's exception, or the end of its standard error.
        manifest: the content that was sent.
        where: the workers' working directory, relative to the tree's root.
        directories: the roots of the tree on the hosts, which may be part of file names in the text.

    Example: "data.bin is here but was not sent: line 3 of .gitignore says `*.bin`"
    """
    if not _SAYS_MISSING.search(text):
        return ""
    root = os.fsdecode(manifest.root)
    for named in _named_files(text):
        path = os.path.normpath(os.path.join(root, _within(named, directories) or os.path.join(where, named)))
        for candidate in _and_parents(path, root):
            if candidate.startswith(root + "/") and (why := why_left_out(manifest, candidate)) is not None:
                return f"{os.path.relpath(candidate, root)} is here but was not sent: {why}"
    # Only files that are certainly missing: a traceback names many files in other places.
    for named in _MISSING.findall(text):
        if (
            _within(named, directories) is None
            and (why := why_left_out(manifest, os.path.join(where, named))) is not None
        ):
            return f"{named} is here but was not sent: {why}"
    return ""


def _named_files(text: str) -> list[str]:
    """Return the possible file names in a text, last first."""
    named = [one or other for one, other in _QUOTED.findall(text)]
    named += _UNQUOTED.findall(text)
    for module in _NO_MODULE.findall(text):
        path = module.replace(".", "/")
        named += [path, f"{path}.py"]
    return list(dict.fromkeys(reversed(named)))[:_MOST_CANDIDATES]


def _within(named: str, directories: Sequence[str]) -> str | None:
    """Return a path on a host relative to the tree's root; None if it is not in the tree."""
    for directory in directories:
        if named.startswith(directory + "/"):
            return os.path.relpath(named, directory)
    return None


def _and_parents(path: str, root: str) -> Iterator[str]:
    """Yield a path and the directories above it, up to the root: any of them may be the reason."""
    while path not in ("", "/", ".", root):
        yield path
        path = os.path.dirname(path)


def where_to_run(manifest: Manifest, directory: str) -> str:
    """Return the working directory of the workers, relative to the tree's root, for a job that starts in `directory`.

    Raises:
        SpecError: the directory is not within the tree.
    """
    root = os.fsdecode(manifest.root)
    relative = os.path.relpath(os.path.realpath(directory), root)
    if relative.split("/")[0] == "..":
        raise SpecError(f"{directory} is not in {root}, which --ship sends", "start from within it, or --ship .")
    if relative != "." and (why := why_left_out(manifest, relative)) is not None:
        raise SpecError(f"{directory} is the workers' working directory, but it is not sent: {why}")
    return "" if relative == "." else relative


def command_on_hosts(manifest: Manifest, command: Sequence[str], directory: str) -> tuple[str, ...]:
    """Return the command for the hosts: a script in the tree is named by a path relative to `directory`.

    Args:
        manifest: the content that is sent.
        command: the user's command.
        directory: the user's working directory, within the tree.

    Raises:
        SpecError: the script or the program exists here but is not sent.
    """
    there = list(command)
    script = python_script(command)
    if "/" in command[0]:
        there[0] = _on_hosts(manifest, command[0], directory, "name a program that the hosts have")
        if "/" not in there[0]:
            there[0] = f"./{there[0]}"
    if script is not None:
        at = there.index(script, 1)
        there[at] = _on_hosts(manifest, script, directory, "add a line with ! and its path to .gitignore")
    return tuple(there)


def _on_hosts(manifest: Manifest, named: str, directory: str, hint: str) -> str:
    path = os.path.join(directory, named)
    relative = _relative(manifest, path)
    if relative is None and os.path.isabs(named):
        return named  # The hosts may have it at the same path: an interpreter, a shared file system.
    why = why_left_out(manifest, path)
    if why is not None:
        raise SpecError(
            f"the command needs {named}, which is not sent: {why}", "--ship .." if relative is None else hint
        )
    if relative is None or not os.path.isabs(named):
        return named
    return os.path.relpath(os.path.join(os.fsdecode(manifest.root), os.fsdecode(relative)), os.path.realpath(directory))
