"""`farandole config` and the project file: where the value of each setting comes from."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from farandole.base.settings.table import FLAGS, SETTINGS, Settings, descriptions
from farandole.control.cli.main import main
from farandole.control.cli.project_options import options_of_run
from farandole.control.launcher.configuration.project import Option, Project, find, read, words
from farandole.control.launcher.configuration.provenance import Provenance, Sources, first_sentence, provenances
from farandole.errors import SpecError

PROJECT = """\
[run]
num-proc = 4
start-timeout = 60
timeline = "out/t.json"
autotune = true
timeline-mark-cycles = false
fusion-threshold-mb = 2

[env]
NCCL_DEBUG = "WARN"
FARANDOLE_CHUNK_BYTES = 4096
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder of our own, with no setting in the environment."""
    for setting in fields(Settings):
        for variable in (f"FARANDOLE_{setting.name.upper()}", setting.metadata["horovod"]):
            if variable is not None:
                monkeypatch.delenv(variable, raising=False)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- finding and reading ----------------------------------------------------------------------------------------------


def test_the_closest_project_file_counts(folder: Path) -> None:
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    assert find(below) is None
    (folder / "pyproject.toml").write_text("[tool.other]\n")
    assert find(below) is None
    (folder / "pyproject.toml").write_text("[tool.farandole.run]\n")
    assert find(below) == folder / "pyproject.toml"
    (folder / "farandole.toml").touch()
    assert find(below) == folder / "farandole.toml"
    (folder / "a" / "farandole.toml").touch()
    assert find(below) == folder / "a" / "farandole.toml"


def test_nothing_above_the_work_tree_counts(folder: Path) -> None:
    (folder / "farandole.toml").touch()
    inner = folder / "inner"
    (inner / ".git").mkdir(parents=True)
    assert find(inner) is None


def test_reading_both_kinds(folder: Path) -> None:
    (folder / "farandole.toml").write_text(PROJECT)
    own = read(folder / "farandole.toml")
    assert own.run["num-proc"] == 4
    assert own.environment == {"NCCL_DEBUG": "WARN", "FARANDOLE_CHUNK_BYTES": "4096"}
    shared = PROJECT.replace("[run]", "[tool.farandole.run]").replace("[env]", "[tool.farandole.env]")
    (folder / "pyproject.toml").write_text(shared)
    assert (read(folder / "pyproject.toml").run, read(folder / "pyproject.toml").environment) == (
        own.run,
        own.environment,
    )


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("[run\n", "cannot be read", "correct it"),
        ("[rum]\n", "has the unknown name 'rum'", "did you mean run?"),
        ("run = 3\n", "run is not a table", "[run]"),
        ("[env]\nX = []\n", "X is not text", 'X = "..."'),
        ("[env]\nFARANDOLE_TIMELINE = 'x'\n", "--timeline sets", "write timeline = ... under [run]"),
        ("[env]\nHOROVOD_TIMELINE = 'x'\n", "--timeline sets", "write timeline = ... under [run]"),
        ("[run]\nnum-prc = 4\n", "no option 'num-prc'", "did you mean num-proc?"),
        ("[run]\nnum_proc = 4\n", "no option 'num_proc'", "did you mean num-proc?"),
        ("[run]\nquite-another = 4\n", "no option 'quite-another'", "farandole run --help"),
        ("[run]\nautotune = 1\n", "autotune is 1", "true or false"),
        ("[run]\nnum-proc = true\n", "num-proc is True", "text, a number"),
        ("[run]\nstart-timeout = 'soon'\n", "start-timeout is 'soon'", "--start-timeout"),
        ("[run]\ntransport = 'pigeon'\n", "transport is 'pigeon'", "auto, shm, tcp"),
    ],
)
def test_both_verbs_report_an_invalid_project_file(
    folder: Path, text: str, words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "farandole.toml").write_text(text)
    assert main(["config"]) == 2
    told = capsys.readouterr().err
    assert str(folder / "farandole.toml") in told and words in told
    assert hint in told.partition("\nhint: ")[2]
    assert main(["run", "-np", "1", "--dry-run", "true"]) == 2
    assert capsys.readouterr().err == told


def test_help_is_shown_even_with_an_invalid_project_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "farandole.toml").write_text("[run\n")
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--help"])
    assert exit_.value.code == 0 and "usage:" in capsys.readouterr().out


# --- as words of a command line ---------------------------------------------------------------------------------------


def test_options_of_the_project_file_become_arguments() -> None:
    options = {
        "hosts": Option("hosts"),
        "verbose": Option("verbose", is_switch=True),
        "include": Option("include", repeats=True),
        "output-dir": Option("output-dir", is_path=True),
    }
    table = {"hosts": ["h1:4", "h2:4"], "verbose": True, "include": ["a", "b"], "output-dir": "logs"}
    project = Project(Path("/project/farandole.toml"), table, {"A": "1", "B": "2"})
    assert words(project, options, {"B": "x", "A": ""}) == [
        "--hosts=h1:4,h2:4",
        "--verbose",
        "--include=a",
        "--include=b",
        "--output-dir=/project/logs",
        "-x",
        "A=1",
    ]


def test_options_on_the_command_line_replace_related_ones_of_the_project_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "farandole.toml").write_text('[run]\nhosts = "no-such-host:2"\nnetwork = ["lo"]\n')
    (folder / "hosts").write_text("localhost slots=1\n")
    assert main(["run", "--hostfile", "hosts", "--network", "127.0.0.1", "--dry-run", "true"]) == 0
    assert "no-such-host" not in capsys.readouterr().out
    project = read(folder / "farandole.toml")
    assert words(project, options_of_run(), {}) == ["--hosts=no-such-host:2", "--network=lo"]
    assert words(project, options_of_run(), {}, {"hostfile", "network"}) == []


def test_home_in_a_path_on_other_hosts_is_theirs() -> None:
    project = Project(Path("/project/farandole.toml"), {"ship-cache": "~/ship", "output-dir": "~/logs"}, {})
    assert words(project, options_of_run(), {}) == ["--ship-cache=~/ship", f"--output-dir={Path.home()}/logs"]


def test_the_environment_wins_over_the_project_file() -> None:
    project = Project(Path("farandole.toml"), {"start-timeout": 60}, {"FARANDOLE_AUTOTUNE_WARMUP_SAMPLES": "1"})
    options = {"start-timeout": Option("start-timeout", type=float)}
    assert words(project, options, {"HOROVOD_START_TIMEOUT": "5", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "9"}) == []


def test_a_value_that_does_not_suit_its_option_is_refused() -> None:
    project = Project(Path("farandole.toml"), {"include": []}, {})
    with pytest.raises(SpecError, match="include is \\[\\]"):
        words(project, {"include": Option("include", repeats=True)}, {})


def test_run_takes_options_from_the_project_file_and_flags_win(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "farandole.toml").write_text(PROJECT)
    below = folder / "below"
    below.mkdir()
    assert main(["run", "--dry-run", "true"]) == 0
    plan = capsys.readouterr()
    assert plan.err == ""
    assert plan.out.startswith("4 workers on 1 host\n")
    for line in (
        "FARANDOLE_START_TIMEOUT=60",
        f"FARANDOLE_TIMELINE={folder}/out/t.json",
        "FARANDOLE_AUTOTUNE=1",
        "NCCL_DEBUG=WARN",
        "FARANDOLE_CHUNK_BYTES=4096",
    ):
        assert f"  {line}\n" in plan.out
    assert main(["run", "--dry-run", "--verbose", "-np", "2", "-x", "NCCL_DEBUG=INFO", "true"]) == 0
    plan = capsys.readouterr()
    assert plan.out.startswith("2 workers on 1 host\n") and "  NCCL_DEBUG=INFO\n" in plan.out
    assert plan.err.startswith(f"farandole: options from {folder}/farandole.toml: --start-timeout ")
    assert "WARN" not in plan.err


def test_every_flag_of_a_setting_is_an_option_of_run() -> None:
    assert FLAGS.keys() <= options_of_run().keys()


# --- where values come from -------------------------------------------------------------------------------------------


def rows(
    environment: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
    project: Project | None = None,
) -> dict[str, Provenance]:
    sources = Sources(environment or {}, options_of_run(), flags or {}, project)
    return {row.name: row for row in provenances(sources)}


def test_every_setting_and_option_has_its_row_and_its_description() -> None:
    found = rows()
    assert SETTINGS.keys() <= found.keys()
    assert options_of_run().keys() - FLAGS.keys() <= found.keys()
    assert all(row.description and row.source == "default" and not row.problem for row in found.values())
    assert set(descriptions()) == SETTINGS.keys()


def test_flag_environment_project_file_default_in_this_order() -> None:
    project = Project(
        Path("/project/farandole.toml"),
        {"start-timeout": 60, "fusion-threshold-mb": 2, "num-proc": 4},
        {"FARANDOLE_CHUNK_BYTES": "4096"},
    )
    environment = {"HOROVOD_START_TIMEOUT": "50"}
    flags = {"start-timeout": "40.0", "num-proc": "3"}

    def told(found: dict[str, Provenance], name: str) -> tuple[str, str]:
        return found[name].value, found[name].source

    assert told(rows(), "start_timeout") == ("30", "default")
    assert told(rows(project=project), "start_timeout") == ("60", "farandole.toml [run] start-timeout")
    assert told(rows(environment, project=project), "start_timeout") == ("50", "HOROVOD_START_TIMEOUT")
    assert told(rows(environment, flags, project), "start_timeout") == ("40.0", "flag --start-timeout")
    assert told(rows(project=project), "fusion_threshold") == (
        str(2 << 20),
        "farandole.toml [run] fusion-threshold-mb",
    )
    assert told(rows(project=project), "chunk_bytes") == ("4096", "farandole.toml [env] FARANDOLE_CHUNK_BYTES")
    assert told(rows(project=project), "num-proc") == ("4", "farandole.toml [run] num-proc")
    assert told(rows(flags=flags, project=project), "num-proc") == ("3", "flag --num-proc")


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = rows({"FARANDOLE_SECRET": "00ff"})["secret"]
    assert (row.value, row.source) == ("***", "FARANDOLE_SECRET")
    for value in ("00ff", "no-hex"):
        monkeypatch.setenv("FARANDOLE_SECRET", value)
        for arguments in ([], ["secret"], ["--json"]):
            main(["config", *arguments])
            told = capsys.readouterr()
            assert value not in told.out + told.err


def test_an_invalid_value_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FARANDOLE_TRANSPORT", "pigeon")
    assert main(["config"]) == 1
    assert "error: FARANDOLE_TRANSPORT is 'pigeon'" in capsys.readouterr().err


# --- the verb ---------------------------------------------------------------------------------------------------------

ONE = """\
setting   stall_warning_seconds
value     5
source    HOROVOD_STALL_CHECK_TIME_SECONDS
default   60
variable  FARANDOLE_STALL_WARNING_SECONDS, HOROVOD_STALL_CHECK_TIME_SECONDS
option    --stall-warning of farandole run
expects   a number of seconds

Seconds after which rank 0 warns that some ranks wait for others, and names them; 0: never.
"""


@pytest.mark.parametrize(
    "name", ["stall_warning_seconds", "FARANDOLE_STALL_WARNING_SECONDS", "--stall-warning", "stall-warning"]
)
def test_a_setting_is_found_by_any_of_its_names(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "5")
    words = [name] if not name.startswith("--") else ["--", name]
    assert main(["config", *words]) == 0
    assert capsys.readouterr().out == ONE


def test_an_unknown_setting_is_reported_with_the_closest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "start_timout"]) == 2
    told = capsys.readouterr().err
    assert told == "error: there is no setting 'start_timout'\nhint: did you mean start_timeout?\n"


def test_all_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert capsys.readouterr().out.startswith("no project file\n\nworkers\nsetting ")
    (folder / "farandole.toml").write_text(PROJECT)
    assert main(["config"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"project file: {folder}/farandole.toml\n\nworkers\n")
    lines = {line.split()[0]: line.split() for line in told.splitlines() if "  " in line}
    assert lines["start_timeout"][1:5] == ["60", "farandole.toml", "[run]", "start-timeout"]
    assert lines["autotune"][1] == "true"


def test_config_shows_values_with_given_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "--with", "-np", "3", "--autotune", "--stall-warning", "7"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["project"] is None
    given = {row["name"]: (row["value"], row["source"]) for row in told["settings"] if row["source"] != "default"}
    assert given == {
        "num-proc": ("3", "flag --num-proc"),
        "autotune": ("true", "flag --autotune"),
        "stall_warning_seconds": ("7.0", "flag --stall-warning"),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("One. Two.", "One"), ("One; two.", "One"), ("No end", "No end"), ("From 0.5 on. Yes", "From 0.5 on")],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence
