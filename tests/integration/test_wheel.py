"""One wheel for every Python, built once and imported by each interpreter found here; and Horovod's name on top."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
# The first test to run builds the wheel.
pytestmark = pytest.mark.timeout(600)

LIBRARIES = [
    "farandole/worker/core/lib/libfarandole.so",
    "farandole/worker/core/lib/libfarandole_jax.so",
    "farandole/worker/core/lib/libfarandole_tensorflow.so",
]
# What workers of a bare environment do: no compiler is at hand, and the library is the one of the wheel.
BARE_SCRIPT = """
import shutil
import numpy
import farandole, farandole.numpy as hvd
from farandole.worker.core import binding

hvd.init()
total = hvd.allreduce(numpy.ones(3) * (hvd.rank() + 1), op=hvd.Sum, name="total").tolist()
tools = [tool for tool in ("cc", "c++", "gcc", "clang", "cmake", "make", "ninja") if shutil.which(tool)]
same = farandole.__version__ == binding.load().farandole_version().decode()
print(total, tools, same, binding.library_path(None))
"""


def python(version: str) -> str | None:
    """Return an interpreter of this version: the running one, one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, shutil.which(f"python{version}")]
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    ask = "import sys; print(*sys.version_info[:2], sep='.')"
    for candidate in filter(None, candidates):
        told = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout.strip() == version:
            return candidate
    return None


def run(*command: object, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)), env=clean | environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that FARANDOLE_WHEEL names, or one of these sources."""
    if given := os.environ.get("FARANDOLE_WHEEL"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    # A build folder that stays: only what has changed is compiled again.
    options = ["--no-deps", "--no-build-isolation", "--config-settings", f"build-dir={ROOT / 'build' / 'wheel'}"]
    # The compiler that CMake takes by itself: what ccache has compiled with it is not compiled again.
    compiler = os.environ.get("CXX", "c++")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", *options, "--wheel-dir", folder, ROOT, CXX=compiler)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_for_every_python_of_this_platform(wheel: Path) -> None:
    name, _, interpreter, abi, platform = wheel.stem.split("-")
    assert (name, interpreter, abi) == ("farandole", "py3", "none")
    assert ("manylinux_2_17_" if os.environ.get("FARANDOLE_WHEEL") else "linux_") in platform


def test_the_wheel_holds_the_package_and_its_libraries(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name for name in names if name.endswith(".so")) == LIBRARIES
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "farandole").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"farandole"}


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_is_all_that_a_bare_environment_needs(wheel: Path, version: str, tmp_path: Path) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine")
    place = tmp_path / "venv"
    run(interpreter, "-m", "venv", "--without-pip", place)
    # Neither this environment's tools nor the machine's: no compiler, no cmake, no make.
    bare = {"PATH": str(place / "bin")}
    began = time.monotonic()
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", "--no-compile"]
    quick = ["--disable-pip-version-check", "--only-binary=:all:", "--constraint", ROOT / "constraints.txt"]
    run(*pip, *quick, wheel, "numpy", **bare)
    print(f"Python {version}: installed, with NumPy, in {time.monotonic() - began:.1f} s")
    (tmp_path / "script.py").write_text(BARE_SCRIPT)
    told = run(place / "bin" / "farandole", "run", "-np", "2", "python", tmp_path / "script.py", **bare)
    site = place / "lib" / f"python{version}" / "site-packages"
    expected = f"[3.0, 3.0, 3.0] [] True {site / LIBRARIES[0]}"
    assert [line.endswith(expected) for line in told.splitlines()] == [True, True], told


def test_the_source_distribution_holds_no_build(tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "pyproject.toml", "native/capi/farandole.h", "src/farandole/__init__.py"} <= files
    trash = ("build/", "dist/", ".venv", "output/", "benchmarks/results/")
    assert not [name for name in files if name.startswith(trash) or name.endswith((".so", ".pyc"))]


# --- farandole-horovod ------------------------------------------------------------------------------------------------

DROP_IN = ROOT / "compat" / "horovod"

HOROVOD_SCRIPT = """
import sys, torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(2) * (hvd.rank() + 1), op=hvd.Sum, name="total").tolist()
print(total, hvd.size(), sys.modules["farandole.torch"] is hvd, hvd.__file__)
"""


def build_drop_in(folder: Path) -> Path:
    if find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds farandole-horovod, is not installed")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, DROP_IN)
    (built,) = folder.glob("*.whl")
    return built


def test_the_drop_in_holds_the_name_and_what_guards_it(tmp_path: Path) -> None:
    built = build_drop_in(tmp_path)
    with zipfile.ZipFile(built) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        requires = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    assert names == {
        *("horovod/__init__.py", "horovod/py.typed", "_farandole_horovod_guard.py", "farandole_horovod.pth")
    }
    cmake = re.search(r"project\(farandole VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert cmake and f"farandole=={cmake[1]}" in requires


def test_installed_together_they_run_a_script_for_horovod(wheel: Path, tmp_path: Path) -> None:
    drop_in = build_drop_in(tmp_path / "dist")
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "--constraint", ROOT / "constraints.txt", wheel, drop_in)
    # torch is taken from this environment; what else is there comes after what was just installed.
    site = Path(run(place / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "torch_from_elsewhere.pth").write_text(str(Path(torch.__file__).parents[1]))
    (tmp_path / "script.py").write_text(HOROVOD_SCRIPT)
    horovodrun = [place / "bin" / "horovodrun", "-np", "2"]
    told = run(*horovodrun, place / "bin" / "python", tmp_path / "script.py")
    module = site / "farandole" / "torch" / "__init__.py"
    assert sorted(told.splitlines()) == [f"[{rank}]<stdout>:[3.0, 3.0] 2 True {module}" for rank in range(2)]
    assert run(*horovodrun, "echo", "hi", PATH=os.environ["PATH"]).count("hi") == 2
    # pip does not mind PyPI's horovod; what was installed does.
    information = site / "horovod-0.28.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (site / "horovod" / "__init__.py").write_text("raise SystemExit('the other package was loaded')\n")
    for refused in ([*horovodrun, "true"], [place / "bin" / "python", "-c", "import horovod"]):
        done = subprocess.run(list(map(str, refused)), cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "horovod 0.28.1 and farandole-horovod are both installed" in done.stderr
