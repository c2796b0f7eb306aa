"""Our declarations of MPI's standard ABI are those of a library that has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.integration.started_by.conftest import PEERS

REPOSITORY = Path(__file__).parents[3]
HEADERS = PEERS / "mpich" / "include"


def test_the_declarations_are_those_of_the_standard(tmp_path: Path) -> None:
    if not (HEADERS / "mpi_abi.h").exists():
        pytest.skip(f"no mpi_abi.h below {PEERS}: `make setup` installs MPICH there")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = Path(__file__).with_name("abi_check.cc")
    program = tmp_path / "abi_check"
    includes = [f"-I{HEADERS}", f"-I{REPOSITORY / 'native'}"]
    # The functions are named and never called, so that nothing need be linked.
    unlinked = "-Wl,--unresolved-symbols=ignore-all"
    subprocess.run([compiler, "-std=c++20", *includes, str(source), "-o", str(program), unlinked], check=True)
    told = subprocess.run([str(program)], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")
