"""`--metrics[=PORT]` stands alone or with a value, and never takes the first word of the command."""

from __future__ import annotations

import pytest

from farandole.control.cli.main import make_parser


@pytest.mark.parametrize(
    ("words", "metrics"),
    [
        (["--metrics", "python", "train.py"], "9478"),
        (["--metrics=0", "python", "train.py"], "0"),
        (["--metrics=0.0.0.0:9000", "python", "train.py"], "0.0.0.0:9000"),
        (["python", "train.py"], None),
        (["python", "train.py", "--metrics=f1", "--metrics"], None),
    ],
)
def test_the_command_of_the_job_is_not_parsed(words: list[str], metrics: str | None) -> None:
    given = make_parser().parse_args(["run", "-np", "2", *words])
    assert given.metrics == metrics
    assert given.command == words[words.index("python") :]
