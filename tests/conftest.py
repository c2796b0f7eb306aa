"""What holds for all tests."""

import compileall
import signal
from pathlib import Path

import pytest

# An assertion of what tests share shows its values, too.
pytest.register_assert_rewrite(*(path.stem for path in (Path(__file__).parent / "support").iterdir()))

pytest_plugins = [
    "fake_gpu_device",
    "machine_state",
    "folder_times",
    "nurseries",
    "pytester",
    "retry_alone",
    "small_disk",
    "spread",
]

# A shell starts background jobs with Ctrl-C ignored, nohup ignores a hang-up, and so do some CI systems.
# Children of the tests would inherit that, and those that test signals would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests start thousands of processes. Where Python may write no byte code (PYTHONDONTWRITEBYTECODE), or they are other
# users, as in pods, each would compile all that it imports: a third of the time that two workers need to start and end.
for _sources in ("src/farandole", "compat/horovod/src"):
    compileall.compile_dir(Path(__file__).parents[1] / _sources, quiet=2)

# Folders, files and tests that `make test` never runs again when they fail: one failure in a thousand runs is an error
# of the product there, whatever the machine had to do meanwhile.
EXACT = (
    # Arithmetic, agreement, explorations and whatever is pure
    "tests/conformance",
    "tests/unit",
    # What a training computes
    "tests/integration/c10d/test_collectives.py",
    "tests/integration/c10d/test_works.py",
    "tests/integration/test_several_frameworks.py",
    "tests/integration/torch",
    # The elastic oracle: each sample once, one state on all ranks
    "tests/integration/elastic/test_soak.py",
    "tests/integration/elastic/test_streams.py",
    "tests/integration/elastic/test_steps.py",
    "tests/integration/elastic/test_steps_programs.py",
    "tests/integration/elastic/test_steps_state.py",
    "tests/integration/elastic/test_tensorflow.py",
    # Security
    "tests/hosts/test_acceptance.py::test_foreign_connections_to_the_roster_do_no_harm",
    "tests/hosts/test_acceptance.py::test_foreign_connections_to_workers_do_no_harm",
    "tests/hosts/test_elastic.py::test_foreign_connections_to_workers_do_no_harm_while_worlds_change",
    "tests/hosts/test_launch.py::test_no_secret_in_any_process_list",
    "tests/integration/elastic/test_faults.py::test_unauthenticated_clients_and_broken_frames_do_not_disturb_training",
    "tests/integration/launcher/test_roster.py::test_client_with_wrong_secret_is_rejected",
    "tests/integration/launcher/test_run.py::test_secret_is_on_no_command_line",
    "tests/integration/started_by/test_by_hand.py::test_a_wrong_secret_is_told_at_once",
    "tests/integration/started_by/test_by_hand.py::test_the_users_key_is_secret_enough",
)


def is_exact(nodeid: str) -> bool:
    """Return whether a test is one of the `EXACT` ones."""
    return any(nodeid == name or nodeid.startswith((f"{name}/", f"{name}::", f"{name}[")) for name in EXACT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_exact(item.nodeid):
            item.add_marker("exact")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named after their argument: their content may differ from process to process, as in a gzip header, and
    pytest-xdist runs nothing when two processes name tests differently.
    """
    return argname if isinstance(val, bytes) else None
