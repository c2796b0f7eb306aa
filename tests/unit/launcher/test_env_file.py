"""Parsing of an --env-file."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.control.launcher.configuration.env_file import parse_env_file, read_env_file
from farandole.errors import SpecError


def parse(text: str) -> dict[str, str]:
    return parse_env_file(text, "job.env", {"HERE": "from here"})


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("\n\n  # a comment\n\t\n", {}),
        ("A=1\nB=two words \n", {"A": "1", "B": "two words"}),
        ("A=", {"A": ""}),
        ("  A = 1 ", {"A": "1"}),
        ("export A=1\nexport\tB=2", {"A": "1", "B": "2"}),
        ("exported=1", {"exported": "1"}),
        ("A=1\r\nB='2'\r\n", {"A": "1", "B": "2"}),
        ("A=x # why\nB=x# not a comment\nC=# empty", {"A": "x", "B": "x# not a comment", "C": ""}),
        ("A=http://host/#part?a=b", {"A": "http://host/#part?a=b"}),
        ("A='$HOME \\n # \"' # why", {"A": '$HOME \\n # "'}),
        ("A='Let\\'s go'", {"A": "Let's go"}),
        (r'A="tab\there \"quoted\" \\ \$HOME $HOME # \q"', {"A": 'tab\there "quoted" \\ $HOME $HOME # \\q'}),
        ("A=$HOME${X}\\n", {"A": "$HOME${X}\\n"}),
        ("A=it's\nB=2", {"A": "it's", "B": "2"}),
        ('KEY="first\nsecond"\nB=2', {"KEY": "first\nsecond", "B": "2"}),
        ("KEY='first\n# second\n'\nB=2", {"KEY": "first\n# second\n", "B": "2"}),
        ("A=''\nB=\"\"", {"A": "", "B": ""}),
        ("HERE\nexport HERE # again", {"HERE": "from here"}),
        ("A=1\nA=2", {"A": "2"}),
        ("with.dots-and_more=1", {"with.dots-and_more": "1"}),
    ],
)
def test_lines_are_parsed(text: str, variables: dict[str, str]) -> None:
    assert parse(text) == variables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\n=secret", "--env-file job.env, line 2: the name of the variable is missing"),
        ("1A=secret", "--env-file job.env, line 1: the name of the variable is missing"),
        ("A='1\n2'\n\nB='secret", "--env-file job.env, line 4: B begins with ' but never closes it"),
        ('A="secret\\"', '--env-file job.env, line 1: A begins with " but never closes it'),
        ("A='x' secret", "--env-file job.env, line 1: A is followed by something that is not a comment"),
        ("A secret", "--env-file job.env, line 1: A is followed by something that is not a comment"),
        ("THERE\n", "--env-file job.env, line 1: THERE has no value, and is not set here either"),
        ("A=sec\0ret", "--env-file job.env, line 1: A contains a NUL character, which environments cannot hold"),
    ],
)
def test_errors_name_the_line_and_never_a_value(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.message == message
    assert "secret" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "job.env"
    path.write_bytes(b"\xef\xbb\xbfA=\xc3\xa9\n")
    assert read_env_file(str(path), {}) == {"A": "é"}
    path.write_bytes(b"A=\xff")
    with pytest.raises(SpecError, match="is not UTF-8 text"):
        read_env_file(str(path), {})
    with pytest.raises(SpecError, match="cannot be read: No such file or directory"):
        read_env_file(str(tmp_path / "missing"), {})
