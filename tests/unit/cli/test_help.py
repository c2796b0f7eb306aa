"""Help in two lengths, and what may have been meant."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from farandole.control.cli.main import VERBS, main, make_parser
from farandole.control.cli.parser import Parser

SCREEN = 30
NAMES = [verb for group in VERBS.values() for verb in group]


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    try:
        code: object = main(words)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def parser_of(verb: str) -> Parser:
    choices = next(each.choices for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    parser = choices[verb]
    assert isinstance(parser, Parser)
    return parser


@pytest.mark.parametrize("verb", ["", "run", "jobs", "kill", "init"])
def test_help_is_one_screen(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *([verb] if verb else []), "--help")
    assert code == 0 and len(out.splitlines()) <= SCREEN


@pytest.mark.parametrize("verb", NAMES)
def test_prose_in_help_fits_a_narrow_terminal(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = told(capsys, verb, "--help-all")[1]
    paragraphs = [each.splitlines() for each in out.split("\n\n")[1:]]
    prose = [lines for lines in paragraphs if not any(line.startswith((" ", "example")) for line in lines)]
    assert prose and all(len(line) <= 40 for lines in prose for line in lines)


@pytest.mark.parametrize("verb", ["", *NAMES])
@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_usage_fits_a_narrow_terminal(
    verb: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*filter(None, [verb]), option]
    whole = told(capsys, *words)[1].partition("\n\n")[0]
    monkeypatch.setenv("COLUMNS", "40")
    lines = told(capsys, *words)[1].partition("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("usage: farandole") and all(line.startswith("       ") for line in lines[1:])
    assert "".join("".join(lines).split()) == "".join(whole.split())
    assert all(line.count("[") == line.count("]") for line in lines)


def test_description_of_a_group_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "run", "--help-all")[1].splitlines()
    assert lines[lines.index("torchrun's options:") + 1] == "  accepted for users of torchrun"


def test_help_of_run_shows_what_people_need_and_the_rest_is_in_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    short, complete = told(capsys, "run", "--help")[1], told(capsys, "run", "--help-all")[1]
    for option in ("-np", "-H", "--hostfile", "--min-np", "--output-dir", "--timeline", "--dry-run", "--help-all"):
        assert f"\n  {option}" in short
    assert "--ssh-option" not in short and "--ssh-option" in complete
    hidden = ("--rdzv-backend", "--rdzv-id", "--rdzv-conf", "--node-rank", "--max-restarts", "--standalone")
    assert [option for option in hidden if option in complete] == []
    options = {action.option_strings[0] for action in parser_of("run")._actions if action.option_strings}
    assert {option for option in options if f"  {option}" not in complete} == set(hidden)


def test_help_lists_some_verbs_and_help_all_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    short, complete = told(capsys, "--help")[1], told(capsys, "--help-all")[1]
    assert [name for name in NAMES if f"\n  {name} " not in complete] == []
    assert "\n  run " in short and "\n  bench " not in short


def test_options_of_torchrun_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rdzv-backend", "c10d", "--rdzv-id", "7", "--node-rank", "0", "--max-restarts", "3", "--standalone")
    code, out, err = told(capsys, "run", *words, "--nproc-per-node", "2", "--dry-run", "true")
    assert (code, err) == (0, "") and out.startswith("2 workers on 1 host\n")


@pytest.mark.parametrize("verb", NAMES)
def test_every_verb_names_only_options_that_it_has_in_its_short_help(verb: str) -> None:
    assert parser_of(verb).format_help() and parser_of(verb).format_complete_help()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu"], "did you mean run?"),
        (["statsu", "x"], "did you mean status?"),
        (["run", "-np", "2", "--transprot", "tcp", "true"], "did you mean --transport?"),
        (["bench", "--collective", "allreduc"], "did you mean allreduce?"),
        (["queue", "strat"], "did you mean start?"),
        (["queue", "statu"], "did you mean status?"),
        (["doctor", "--imp"], "did you mean --import?"),
        (["kubernetes", "instal"], "did you mean install?"),
        (["train.py", "--lr", "1"], "did you mean farandole run -np 2 python train.py --lr 1?"),
        (["python", "train.py"], "did you mean farandole run -np 2 python train.py?"),
        (["-np", "4", "python", "train.py"], "did you mean farandole run -np 4 python train.py?"),
        (["--json", "jobs"], "write farandole jobs --json ..."),
    ],
)
def test_mistyped_words_get_a_suggestion(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *words)
    assert (code, out) == (2, "") and err.startswith("error: ")
    assert f"\nhint: {hint} Otherwise see farandole" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scale", "job", "many"], "N many: expected a whole number"),
        (["kill", "--rank", "one"], "--rank one: expected a whole number"),
        (["run", "--grace", "soon", "true"], "--grace soon: expected a number"),
        (["xyzzy"], "unknown verb 'xyzzy'"),
        (["run", "--timeline"], "--timeline needs a value"),
        (["doctor", "h1"], "unrecognized arguments: h1"),
        (["kubernetes", "operator", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_wrong_arguments_are_reported_plainly(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, *words)
    assert code == 2 and err.startswith(f"error: {message}\nhint: see farandole")


def test_a_missing_argument_is_reported_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "scale")[2] == "error: JOB is missing\nhint: farandole scale JOB N [--on PLACE] [--json]\n"
    assert told(capsys, "queue")[2].startswith("error: ACTION is missing\nhint: farandole queue start|status|")


def loaded_after(code: str) -> set[str]:
    """Return the modules that a new process has loaded after it has run code."""
    command = [sys.executable, "-c", f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["rnu"]])
def test_help_loads_no_verb_and_nothing_that_takes_time(words: list[str]) -> None:
    loaded = loaded_after(f"from farandole.control.cli.main import main; main({words})")
    slow = {"rich", "shtab", "argparse_manpage", "asyncio", "msgspec", "numpy", "torch", "json"}
    slow |= {"difflib"} if words == ["--help"] else set()
    assert "farandole.control.cli.parser" in loaded
    assert loaded & (slow | {f"farandole.control.cli.{name}" for name in NAMES}) == set()


def test_verbs_load_no_extra_for_their_help() -> None:
    loaded = loaded_after("from farandole.control.cli.main import make_parser; make_parser()")
    extras = {
        "numpy",
        "scipy",
        "lightkube",
        "cryptography",
        "starlette",
        "uvicorn",
        "shtab",
        "argparse_manpage",
        "yaml",
    }
    assert {f"farandole.control.cli.{name}" for name in NAMES} <= loaded
    assert loaded & (extras | {"rich", "torch", "tensorflow", "jax", "prometheus_client"}) == set()
