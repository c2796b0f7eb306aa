"""Our declarations of MPI's three ABIs are those of libraries that have them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from mpi_seats import PEERS

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("mpi", "header", "constants"),
    [("mpich", "mpi_abi.h", "kStandard"), ("mpich", "mpi.h", "kMpich"), ("openmpi", "mpi.h", "kOpenMpi")],
)
def test_the_declarations_are_those_of_the_library(tmp_path: Path, mpi: str, header: str, constants: str) -> None:
    headers = PEERS / mpi / "include"
    if not (headers / header).exists():
        pytest.skip(f"no {header} in {headers}: `make setup` installs it there")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = Path(__file__).with_name("abi_check.cc")
    program = tmp_path / "abi_check"
    defined = ["-DOMPI_SKIP_MPICXX", f"-DHEADER=<{header}>", f"-DOURS={constants}"]
    includes = [f"-I{headers}", f"-I{REPOSITORY / 'native'}"]
    # The functions are named and never called, so that nothing need be linked.
    unlinked = "-Wl,--unresolved-symbols=ignore-all"
    command = [compiler, "-std=c++20", *defined, *includes, str(source), "-o", str(program), unlinked]
    subprocess.run(command, check=True)
    told = subprocess.run([str(program)], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")
