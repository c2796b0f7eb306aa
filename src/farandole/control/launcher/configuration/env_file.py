"""Parser for the variables of `--env-file`.

    # a comment
    DATA=/data/imagenet           # a comment after a space; the value ends before it
    export TOKEN='taken as it is: $HOME, \\n, #'
    GREETING="escapes work here: \\n \\t \\" \\\\ \\$"
    HOME_DIRECTORY
    KEY="-----BEGIN KEY-----
    a quoted value may have several lines
    -----END KEY-----"

The syntax is that of Docker Compose and dotenv, without their expansion of variables: a `$` in a password stays a `$`.
As with `docker run --env-file`, a name without a value takes its value from the environment. (`docker run` itself
keeps quotes as a part of the value, which is rarely intended.) The last of several lines with the same name counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from farandole.errors import SpecError

_BLANK = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_NAME = re.compile(r"[ \t]*(?:export[ \t]+)?([^\W\d][\w.\-]*)[ \t]*")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE = re.compile(r"[^\n]*")
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "\n": ""}


def read_env_file(path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file.

    Raises:
        SpecError: the file cannot be read, or a line is not valid.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"--env-file {path} cannot be read: {error.strerror}", "check the path") from None
    except UnicodeDecodeError:
        raise SpecError(f"--env-file {path} is not UTF-8 text") from None
    return parse_env_file(text, path, environment)


def parse_env_file(text: str, source: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file's text. Errors never repeat a value: it may be a secret.

    Args:
        text: the contents of the file.
        source: the file's name, for errors.
        environment: the environment that names without a value are looked up in.

    Raises:
        SpecError: a line is not valid, or a name without a value is not set.

    Example:
        >>> parse_env_file("A=1 # one\\nB='#'\\nexport C", "job.env", {"C": "see"})
        {'A': '1', 'B': '#', 'C': 'see'}
    """
    text = text.replace("\r\n", "\n")
    variables: dict[str, str] = {}
    at = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        where = f"--env-file {source}, line {text.count(chr(10), 0, at) + 1}"
        name = _NAME.match(text, at)
        if name is None:
            raise SpecError(f"{where}: the name of the variable is missing", "write NAME=value; comments begin with #")
        if text[name.end() : name.end() + 1] == "=":
            variables[name[1]], at = _value(text, name.end() + 1, f"{where}: {name[1]}")
        else:
            at = _end_of_line(text, name.end(), f"{where}: {name[1]}", "write NAME=value, without spaces around the =")
            variables[name[1]] = _inherited(name[1], where, environment)
    return variables


def _value(text: str, start: int, where: str) -> tuple[str, int]:
    """Parse the value that begins at `start`; return it and where the next line begins."""
    while text[start : start + 1] in (" ", "\t"):
        start += 1
    quote = text[start : start + 1]
    if quote not in ("'", '"') or not quote:
        found = _BARE.match(text, start)
        assert found is not None
        value, end = _COMMENT.sub("", found[0]).strip(" \t"), found.end() + 1
    else:
        found = (_SINGLE if quote == "'" else _DOUBLE).match(text, start)
        if found is None:
            raise SpecError(f"{where} begins with {quote} but never closes it", f"add {quote} at the end of the value")
        value = found[1].replace("\\'", "'") if quote == "'" else _without_escapes(found[1])
        end = _end_of_line(text, found.end(), where, "quote the whole value, and put a \\ before quotes in it")
    if "\0" in value:
        raise SpecError(f"{where} contains a NUL character, which environments cannot hold")
    return value, end


def _end_of_line(text: str, start: int, where: str, hint: str) -> int:
    found = _BLANK.match(text, start)
    if found is None:
        raise SpecError(f"{where} is followed by something that is not a comment", hint)
    return found.end()


def _without_escapes(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), value, flags=re.DOTALL)


def _inherited(name: str, where: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise SpecError(f"{where}: {name} has no value, and is not set here either", f"write {name}=value")
    return environment[name]
