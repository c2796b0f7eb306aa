"""What `farandole.mxnet` says where MXNet is not, or cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

NEEDED = r"^farandole\.mxnet needs MXNet 1\.9\.1.* with NumPy 1\.23\.5.*Python 3\.10 or 3\.11; .*'farandole\[mxnet\]'"


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is not None, reason="MXNet is installed here")
def test_error_names_the_needed_versions() -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"{NEEDED} \(importing mxnet here: No module named 'mxnet'\)$"):
        importlib.import_module("farandole.mxnet")


@pytest.mark.skipif("mxnet" in sys.modules, reason="MXNet has been imported")
def test_error_with_another_numpy_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MXNet does it with NumPy 1.24 and later."""
    (tmp_path / "mxnet.py").write_text("import numpy\nnumpy.no_such_type\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=rf"{NEEDED} \(importing mxnet here: .*no_such_type"):
        importlib.import_module("farandole.mxnet")
