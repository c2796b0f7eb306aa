"""The engine's declarations for the CUDA driver and NCCL, compared with their headers. `make test-cuda-fake`."""

from __future__ import annotations

import shutil
import subprocess
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_engine_states_what_the_headers_do() -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    spec = util.find_spec("nvidia")
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    headers = [include for each in folders for include in each.glob("*/include")]
    if compiler is None or not any((each / "nccl.h").exists() for each in headers):
        pytest.skip("there is no C++ compiler, or PyTorch's packages of CUDA are not installed")
    included = [word for each in headers for word in ("-isystem", str(each))]
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'native'}", *included]
    source = Path(__file__).with_name("headers.cc")
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
