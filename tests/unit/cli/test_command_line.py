"""What the command line says without starting anything."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys

import pytest

from farandole.control.cli.main import main, make_parser


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["run", "--help"], ["bench", "--help"], ["test", "--help"]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 0
        verb = arguments[0]
        example = f"farandole {verb} -np 2" if verb in ("bench", "test") else "farandole run -np 2 python train.py"
        assert example in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["config", "transport"], ["completion", "bash"], ["--help"], ["run", "--help-all"], ["--version"]]
)
def test_full_disk_under_standard_output_is_an_error(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "farandole", *arguments], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "error: standard output cannot be used: No space left on device\n"
        "hint: free some space there, or choose another place\n"
    )


def test_file_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(options: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/home/me/records")

    monkeypatch.setattr("farandole.control.cli.config.execute", execute)
    assert main(["config"]) == 1
    assert capsys.readouterr().err == (
        "error: /home/me/records cannot be used: Permission denied\n"
        "hint: check its permissions, or choose another place\n"
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("farandole ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "python", "x.py"], "-np"),
        (["run", "-np", "2"], "the command is missing"),
        (["run", "-np", "2", "--"], "the command is missing"),
        (["run", "-H", "h1:0,h2:0", "true"], "no slots for workers on h1, h2"),
        (["run", "-np", "two", "true"], "-np two is not a number of workers"),
        (["run", "-np", "-1", "true"], "-1"),
        (["run", "-np", "0", "true"], "0 workers cannot be started"),
        (["run", "-np", "1000001", "true"], "1000001 workers cannot be started\nhint: use at most 1000000"),
        (["run", "-np", "2", "--ship", "/nowhere", "true"], "--ship /nowhere is not a directory"),
        (["trace", "timeline.json"], "unknown action 'timeline.json'\nhint: farandole trace summary FILE"),
        (["run", "-np", "2", "-H", "", "true"], "the value of -H/--hosts is empty"),
        (["run", "-np", "2", "--hostfile", "", "true"], "the value of --hostfile is empty"),
        (["run", "-np", "2", "--hostfile=", "true"], "the value of --hostfile is empty"),
        (["run", "-np", "2", "--timeline", "", "true"], "the value of --timeline is empty"),
        (["run", "-np", "2", "--output-dir", "", "true"], "the value of --output-dir"),
        (["submit", "-np", "2", "--name", "", "true"], "the value of --name is empty"),
        (["run", "-np", "1", "--transport", "pigeon", "true"], "pigeon"),
        (["run", "-np", "1", "-x", "SURELY_NOT_SET", "true"], "SURELY_NOT_SET"),
        (["run", "-np", "1", "--dry-run", "surely-no-such-program"], "no program 'surely-no-such-program'"),
        (["run", "-np", "1", "--resume", "auto", "true"], "the directory of checkpoints is missing"),
        (["run", "-np", "1", "--checkpoint-dir", __file__, "true"], "test_command_line.py is not a directory"),
        (["run", "-np", "1", "--autotune-log-file", "x.csv", "true"], "logs nothing without autotuning"),
        (["doctor", "-H", "h1:1", "--ssh-fanout", "2"], "unrecognized arguments: --ssh-fanout"),
        (["run", "-H", "h1:1", "--ssh", "reach", "-p", "22", "true"], "--ssh-port has no effect with --ssh reach"),
        (["doctor", "-H", "h1:1", "--ssh", "reach", "-i", __file__], "--ssh-identity has no effect with --ssh reach"),
        (["run", "-np", "1", "--host-timeout", "inf", "true"], "a host timeout of inf s is not valid"),
        (["run", "-np", "1", "--host-timeout", "nan", "true"], "a host timeout of nan s is not valid"),
        (["run", "-np", "1", "--witnesses", "-1", "true"], "-1 is not a valid number of witnesses"),
        (["run", "-np", "1", "--witnesses", "2", "true"], "2 is not a valid number of witnesses"),
        (["run", "-np", "1", "--ship", ".", "--ship-cache", "cache", "true"], "--ship-cache cache is a relative path"),
        (["run", "-np", "1", "--master-addr", "h", "--master-port", "99999", "true"], "99999 is not a valid port"),
        (["run", "-np", "1", "--rdzv-endpoint", "h", "true"], "'h' is not an address"),
        (["test"], "the number of workers is missing"),
        (["test", "-np", "0"], "0 workers cannot be started"),
        (["test", "-np", "2", "train.py"], "train.py"),
        (["bench"], "-np is missing"),
        (["bench", "-np", "0"], "0 workers cannot be started"),
        (["bench", "-np", "2", "--sizes", "4,many"], "'many' is not a valid size"),
        (["bench", "-np", "2", "--sizes", "0"], "'0' is not a valid size"),
        (["bench", "-np", "2", "--collective", "barrier"], "barrier"),
        (["dance"], "dance"),
    ],
)
def test_mistakes_are_reported_with_a_hint(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ") and message in captured.err
    assert "\nhint: " in captured.err


def test_a_variable_that_is_not_valid_is_reported_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_TF1", "maybe")
    assert main(["run", "-np", "1", "true"]) == 2
    assert capsys.readouterr().err == (
        "error: FARANDOLE_TF1 is 'maybe', but should be 0 or 1 (default: 0). Correct it or unset it.\n"
        "hint: farandole config shows where the value comes from\n"
    )


def test_an_unknown_option_points_to_the_help_that_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, where in (["run", "--bogus", "-np", "2", "true"], "farandole run"), (["--bogus"], "farandole"):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        assert capsys.readouterr().err == f"error: unrecognized arguments: --bogus\nhint: see {where} --help\n"


def test_a_mistyped_option_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "-np", "2", "--max-npp=4", "python", "train.py"])
    assert capsys.readouterr().err == (
        "error: unrecognized arguments: --max-npp=4\nhint: did you mean --max-np? Otherwise see farandole run --help\n"
    )


def test_dry_run_prints_the_plan_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-np", "2", "--dry-run", "--", "true", "-np", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("2 workers on 1 host\n")
    assert "command        true -np 3\n" in captured.out
    assert "FARANDOLE_SECRET=***\n" in captured.out


def test_an_option_of_the_command_may_look_like_an_abbreviation_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-np", "1", "--dry-run", "true", "--checkpoint", "here"]) == 0
    assert "true --checkpoint here" in capsys.readouterr().out


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_starting_a_job_loads_no_framework_and_no_native_library() -> None:
    loaded = python(
        "import sys, farandole, farandole.control.launcher.start.launch, farandole.control.agent.agent;"
        "import farandole.control.launcher.function; farandole.run; print(*sys.modules)"
    ).split()
    assert not {"torch", "numpy", "tensorflow", "jax", "farandole.worker.core.binding"} & set(loaded)


def test_public_names() -> None:
    code = "import sys, farandole; n = dir(farandole); print([m for m in sys.modules if m.startswith('farandole')]);"
    assert (
        python(code + "print(*[x for x in n if x in farandole.__all__])")
        == "['farandole']\n__version__ count_step report run start_timeline stats stop_timeline submit\n"
    )


def test_a_command_that_is_interrupted_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("farandole.control.cli.job_verbs.connect", interrupted)
    assert main(["jobs"]) == 130


@pytest.mark.parametrize(
    ("verb", "words", "options"),
    [
        ("hosts", ("add", "h2:1"), (("--job", "a"), ("--json",))),
        ("queue", ("hosts", "add", "h3:4"), (("--state", "/q"), ("--json",))),
        ("kill", ("a",), (("--rank", "2"), ("--signal", "term"))),
        ("scale", ("a", "3"), (("--on", "local"), ("--json",))),
        ("logs", ("a",), (("-f",), ("--rank", "1"))),
        ("trace", ("summary", "t.json"), (("--json",),)),
        ("config", ("start_timeout",), (("--json",),)),
        ("dashboard", ("a",), (("--on", "local"), ("--port", "0"))),
        ("init", ("train.py",), (("--write",),)),
    ],
)
def test_options_may_stand_anywhere_behind_the_verb(
    verb: str, words: tuple[str, ...], options: tuple[tuple[str, ...], ...]
) -> None:
    parser = make_parser()
    expected = parser.parse_args([verb, *words, *itertools.chain(*options)])
    for places in itertools.product(range(len(words) + 1), repeat=len(options)):
        line = [verb]
        for position in range(len(words) + 1):
            line += itertools.chain(
                *(option for option, place in zip(options, places, strict=True) if place == position)
            )
            line += words[position : position + 1]
        assert vars(parser.parse_args(line)) == vars(expected), line


def test_an_unknown_option_between_words_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["hosts", "add", "--jab", "a", "h2:1"])
    said = capsys.readouterr().err
    assert "--jab" in said and "did you mean --job?" in said
