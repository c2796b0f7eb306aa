"""What shells and `man` are given, of the parsers."""

from __future__ import annotations

import builtins
import shutil
import subprocess
from pathlib import Path

import pytest

from farandole.control.cli import completion, man
from farandole.control.cli.main import main
from farandole.errors import SpecError


def test_bash_completes_verbs_options_and_values(tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(completion.script("bash"))
    (tmp_path / "host-list").touch()

    def complete(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        code = f"source completion; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE='{' '.join(words)}'; "
        code += 'COMP_POINT=${#COMP_LINE}; $(complete -p farandole | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30)
        return done.stdout.split()

    assert {"run", "resume"} <= set(complete("farandole", "r"))
    assert "--hostfile" in complete("farandole", "run", "--hostf")
    assert set(complete("farandole", "run", "--transport", "")) == {"auto", "shm", "tcp"}
    assert complete("farandole", "run", "--hostfile", "host-l") == ["host-list"]
    assert "--rdzv-backend" not in complete("farandole", "run", "--rdzv")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(completion.script(shell))
    assert "farandole" in script.read_text() and "hostfile" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed, so its script is not read")
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manual_page_has_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(".TH FARANDOLE")
    for verb in ("run", "init", "kill", "queue", "completion"):
        assert f"farandole {verb}" in page.replace("\\-", "-")
    assert "rdzv-backend" not in page.replace("\\-", "-")


@pytest.mark.parametrize(
    ("library", "make"), [("shtab", lambda: completion.script("bash")), ("argparse_manpage", man.page)]
)
def test_a_missing_library_is_reported_with_what_to_install(
    library: str, make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(name=library)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SpecError) as error:
        make()  # type: ignore[operator]
    assert error.value.hint == "pip install 'farandole[cli]'"
