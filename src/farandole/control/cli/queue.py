"""`farandole queue`: start, stop and configure a queue for a few machines."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.base.display.tables import show
from farandole.control.cli.job_verbs import print_json
from farandole.control.cli.parser import Parser
from farandole.control.cli.project_options import given_options, parser_of_run
from farandole.control.cli.run import read_launch
from farandole.control.jobs.errors import BadSpec, JobError
from farandole.control.launcher.job.from_job import to_plain
from farandole.control.queue.address import default_state
from farandole.control.queue.client import TOKEN_VARIABLE, QueueClient, connect
from farandole.control.queue.model import RunOptions
from farandole.control.queue.protocol import Backup, ChangeHosts, Configure, MakeToken, StopQueue
from farandole.control.queue.start import prepare

# Options of `farandole run` that say what one job is, where it runs, or how it is shown.
_OF_A_JOB = (
    *("num-proc", "min-np", "max-np", "nnodes", "nproc-per-node", "hosts", "hostfile", "include", "exclude"),
    *("host-discovery-script", "hosts-from", "slots-per-host", "launcher", "launcher-args"),
    *("job", "attach", "detach", "dry-run", "json"),
)
_START_SECONDS = 20.0

_EPILOG = """\
  farandole queue start --hosts h1:4,h2:4 [--policy NAME]   start the daemon; with --foreground, in this process
  farandole queue status                                    show the hosts, their jobs, and the settings
  farandole queue config policy=rr quantum=600              change settings at once; without any, show them
  farandole queue config queue.vision=weight=2,limit=8 user.ann=slots=4,jobs=20
  farandole queue hosts add h3:4                            add a host; also: drain h1, remove h1
  farandole queue token ann                                 create a token for a user whom the kernel cannot identify
  farandole queue revoke ann                                revoke all tokens of ann
  farandole queue backup FILE                               copy the database while it is in use
  farandole queue stop                                      stop the daemon; jobs keep running, and are found again

Next: farandole submit -np 2 -- python train.py, and farandole jobs, status, logs, scale, cancel, suspend, resume.
More: docs/how-to/queue.md. Policies: farandole simulate --policies.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole queue start|status|config|hosts|token|revoke|backup|stop ...",
        description="A queue for a few machines: jobs wait for slots, which a policy assigns.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("action", choices=tuple(_ACTIONS), metavar="ACTION", help="the action: see below")
    add("words", nargs="*", metavar="WORD", help="arguments of the action")
    add("--hosts", metavar="HOST:SLOTS,...", help="start: the hosts, such as h1:4,h2:4 or h1:4/a100 with a type")
    add("--policy", metavar="NAME", help="start: the scheduling policy (farandole simulate --policies lists them)")
    add("--state", type=Path, metavar="DIR", help="where the queue keeps its state (default: FARANDOLE_QUEUE)")
    add("--foreground", action="store_true", help="start: run in the foreground, as systemd expects")
    add(
        "--run-options", metavar="WORDS", default="", help="start: options of farandole run for all jobs, such as ssh's"
    )
    add("--json", action="store_true", help="print JSON, for programs")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    code: int = _ACTIONS[given.action](given)
    return code


def _client(given: argparse.Namespace) -> QueueClient:
    return QueueClient(given.state or connect(os.environ).state, os.environ, retry=0.0)


def _refuse_words(given: argparse.Namespace, most: int = 0) -> None:
    if len(given.words) > most:
        raise BadSpec(
            f"farandole queue {given.action}: {given.words[most]!r} is not expected here",
            "farandole queue --help shows the actions",
        )


# --- start and stop --------------------------------------------------------------------------------------------------


def _start(given: argparse.Namespace) -> int:
    """Start the daemon, and wait until it answers."""
    _refuse_words(given)
    state = (given.state or default_state(os.environ)).absolute()  # The daemon has a different working directory.
    prepare(state, given.hosts, given.policy, read_run_options(given.run_options))
    command = [sys.executable, "-m", "farandole.control.queue.daemon", os.fspath(state)]
    if given.foreground:
        sys.stdout.flush()
        os.execv(command[0], command)
    return _start_behind(command, state)


def read_run_options(text: str) -> RunOptions:
    """Return the options of `farandole run` that apply to all jobs.

    Raises:
        BadSpec: they are not valid, or they describe a single job.
    """
    words = shlex.split(text)
    given = parser_of_run().parse_args(["-np", "1", *words, "--", "true"])
    of_a_job = [f"--{name}" for name in given_options(words) if name in _OF_A_JOB]
    of_a_job += given.command[:1] if given.command != ["--", "true"] else []
    if of_a_job:
        what = f"--run-options: {of_a_job[0]} cannot hold for all jobs of a queue"
        raise BadSpec(what, "such as --run-options '-i key -p 2222'")
    return RunOptions(to_plain(read_launch(given, {})), tuple(given.python), given.verbose)


def _start_behind(command: Sequence[str], state: Path) -> int:
    with open(state / "log", "ab") as log:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    deadline = time.monotonic() + _START_SECONDS
    while daemon.poll() is None and time.monotonic() < deadline:
        try:
            told = QueueClient(state, os.environ, retry=0.0).cluster()
        except JobError:
            time.sleep(0.05)
            continue
        hosts = ", ".join(f"{host['name']}:{host['slots']}" for host in told["hosts"])
        daemon.returncode = 0  # Keeps Popen from warning that it was not waited for.
        print(f"farandole: the queue runs on {hosts}, policy {told['settings']['policy']}", file=sys.stderr)
        print("hint: farandole submit -np 2 -- python train.py; farandole jobs", file=sys.stderr)
        return 0
    print(f"error: the queue's daemon did not start; the end of {state / 'log'}:", file=sys.stderr)
    for line in (state / "log").read_text(errors="replace").splitlines()[-5:]:
        print(f"    | {line}", file=sys.stderr)
    print("hint: farandole queue start --foreground shows more", file=sys.stderr)
    return 1


def _stop(given: argparse.Namespace) -> int:
    _refuse_words(given)
    client = _client(given)
    client.ask(StopQueue())
    print(
        "farandole: the queue's daemon is stopping; jobs keep running, and farandole queue start finds them again",
        file=sys.stderr,
    )
    return 0


# --- status and settings ---------------------------------------------------------------------------------------------


def _status(given: argparse.Namespace) -> int:
    _refuse_words(given)
    told = _client(given).cluster()
    if given.json:
        print_json(told)
        return 0
    rows = [
        (host["name"], f"{host['used']}/{host['slots']}", host["type"], host["state"], " ".join(host["jobs"]) or "-")
        for host in told["hosts"]
    ]
    show([("host", "used", "type", "state", "jobs"), *rows])
    counts = ", ".join(f"{number} {phase}" for phase, number in told["jobs"].items())
    print(f"\njobs:   {counts or 'none'}\npolicy: {told['settings']['policy']}")
    return 0


def _config(given: argparse.Namespace) -> int:
    client = _client(given)
    if given.words:
        client.ask(Configure(tuple(given.words)))
    settings = client.cluster()["settings"]
    if given.json:
        print_json(settings)
    else:
        print(*_lines(settings), sep="\n")
    return 0


def _lines(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as lines in the syntax that sets them."""
    groups = ("queues", "quotas", "admins")
    lines = [
        f"{key}={value:.15g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in settings.items()
        if key not in groups
    ]
    lines += [f"admins={','.join(settings['admins'])}"] if settings["admins"] else []
    lines += [f"queue.{name}={text or '-'}" for name, text in settings["queues"].items()]
    for user, quota in settings["quotas"].items():
        pairs = ",".join(f"{key}={value}" for key, value in quota.items() if value is not None)
        lines.append(f"user.{user}={pairs}" if user else f"users={pairs}")
    return lines


def _hosts(given: argparse.Namespace) -> int:
    if len(given.words) < 2:
        raise BadSpec("farandole queue hosts: the action is missing", "use add h3:4, drain h1 or remove h1")
    _client(given).ask(ChangeHosts(given.words[0], tuple(given.words[1:])))
    return _status(argparse.Namespace(**{**vars(given), "words": []}))


def _token(given: argparse.Namespace) -> int:
    _refuse_words(given, 1)
    if not given.words:
        raise BadSpec(f"farandole queue {given.action}: the user is missing", f"farandole queue {given.action} ann")
    revoke = given.action == "revoke"
    told = _client(given).ask(MakeToken(given.words[0], revoke))
    if revoke:
        print(f"farandole: revoked {told} tokens of {given.words[0]}", file=sys.stderr)
    else:
        print(told)
        print(f"farandole: set {TOKEN_VARIABLE} to it; it is not shown again", file=sys.stderr)
    return 0


def _backup(given: argparse.Namespace) -> int:
    _refuse_words(given, 1)
    if not given.words:
        raise BadSpec("farandole queue backup: the file is missing", "farandole queue backup /backup/queue.db")
    _client(given).ask(Backup(os.path.abspath(given.words[0])))
    print(f"farandole: the queue's current state is saved in {given.words[0]}", file=sys.stderr)
    return 0


_ACTIONS = {
    "start": _start,
    "status": _status,
    "config": _config,
    "hosts": _hosts,
    "token": _token,
    "revoke": _token,
    "backup": _backup,
    "stop": _stop,
}
