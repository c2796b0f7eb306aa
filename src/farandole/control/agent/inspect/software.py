"""Installed software: farandole and its native library, Python, frameworks, and programs that start jobs."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from farandole.base.installed import PACKAGE_FOLDER, own_version
from farandole.control.agent.inspect.facts import Framework, NativeBackend, Program, Software
from farandole.control.agent.inspect.view import HostView, json_in

IMPORT_SECONDS = 60.0

# The directory that farandole is imported from.
_PACKAGES = str(Path(PACKAGE_FOLDER).parent)

# The import name of each framework, and the names that it may be installed under.
_FRAMEWORKS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
    "keras": ("keras", "keras-nightly"),
    "jax": ("jax",),
    "mxnet": ("mxnet", "mxnet-cu112", "mxnet-cu110"),
}

# In a process of its own, since neither the launcher nor an agent ever loads it.
_LOAD_LIBRARY = """\
import json, os, sys
sys.path.insert(0, sys.argv[1])
from farandole.base import nccl_library
from farandole.worker.core import binding
from farandole.errors import LibraryError
try:
    library = binding.load(os.environ.get("FARANDOLE_LIBRARY") or None)
    told = {"path": str(library.path), "version": library.farandole_version().decode()}
    told["backends"] = json.loads(library.farandole_backends())
    for backend in told["backends"]:
        if not backend["absent"]:
            name = backend["name"]
            asked = os.environ.get(f"FARANDOLE_{name.upper()}_LIBRARY", "")
            asked = nccl_library.choose(asked) if name == "nccl" else asked
            found = library.farandole_probe_backend(name.encode(), asked.encode())
            backend["found"] = (found or b"").decode()
            backend["unusable"] = "" if found is not None else library.farandole_last_error().decode()
    print(json.dumps(told))
except LibraryError as error:
    print(json.dumps({"error": str(error)}))
"""

_IMPORT_FRAMEWORK = """\
import importlib, json, sys, time
start = time.perf_counter()
try:
    module = importlib.import_module(sys.argv[1])
except BaseException as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    sys.exit(0)
told = {"seconds": time.perf_counter() - start}
if sys.argv[1] == "torch":
    gpus = module.cuda.device_count() if module.cuda.is_available() else 0
    told["detail"] = f"built for CUDA {module.version.cuda}, sees {gpus} GPUs" if module.version.cuda else "CPU only"
WITH_PLUGIN = {
    "tensorflow": ("collectives are slower Python functions", "collectives are ops of the plugin"),
    "jax": ("no collectives in compiled functions", "collectives can be in compiled functions"),
}
if sys.argv[1] in WITH_PLUGIN:
    sys.path.insert(0, sys.argv[2])
    import warnings
    warnings.simplefilter("ignore")
    try:
        plugin = importlib.import_module(f"farandole.{sys.argv[1]}.plugin")
        why = plugin.why_not()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    without, usable = WITH_PLUGIN[sys.argv[1]]
    told["detail"] = f"{without}: {why}" if why else usable
print(json.dumps(told))
"""

_VERSIONS = {"ssh": ("-V",), "mpirun": ("--version",)}


def library_question() -> tuple[str, ...]:
    """Return the command line of a program whose output shows whether the native library can be loaded."""
    return sys.executable, "-c", _LOAD_LIBRARY, _PACKAGES


def program_questions(view: HostView) -> list[tuple[str, ...]]:
    """Return the command lines with which programs print their versions."""
    return [(path, *words) for name, words in _VERSIONS.items() if (path := view.programs.path(name))]


def software(view: HostView) -> Software:
    """Return the facts about farandole and Python."""
    told = json_in(view.programs.answer(*library_question()))
    return Software(
        version=own_version(),
        folder=PACKAGE_FOLDER,
        library=told.get("path"),
        library_version=told.get("version"),
        library_error=None if "path" in told else told.get("error", "the process that loads it ended early"),
        backends=msgspec.convert(told.get("backends", ()), tuple[NativeBackend, ...]),
        python=platform.python_version(),
        executable=sys.executable,
        prefix=sys.prefix,
    )


def frameworks(view: HostView, try_import: bool) -> tuple[Framework, ...]:
    """Return the installed frameworks.

    Args:
        view: the host to inspect.
        try_import: also import each of them, one after the other, each in its own process.
    """
    found = []
    for name, distributions in _FRAMEWORKS.items():
        package = view.package(name, distributions)
        if package is not None:
            told = _try_import(view, name) if try_import else {}
            found.append(
                Framework(
                    name=name,
                    version=package[0],
                    import_seconds=told.get("seconds"),
                    import_error=told.get("error"),
                    cuda=_cuda_of(view, name),
                    detail=told.get("detail"),
                )
            )
    return tuple(found)


def _cuda_of(view: HostView, name: str) -> str | None:
    """Return the version of CUDA that torch was built for, from a file of its package."""
    text = (view.package_file(name, "version.py") or "") if name == "torch" else ""
    found = re.search(r"^cuda\b.*= ['\"]([0-9.]+)['\"]$", text, re.MULTILINE)
    return found[1] if found else None


def _try_import(view: HostView, name: str) -> dict[str, Any]:
    question = (sys.executable, "-c", _IMPORT_FRAMEWORK, name, _PACKAGES)
    answer = view.programs.answer(*question, seconds=IMPORT_SECONDS)
    why = f"the import failed, or took longer than {IMPORT_SECONDS:g} s"
    return json_in(answer) or {"error": why}


def programs(view: HostView) -> tuple[Program, ...]:
    """Return the installed programs that start jobs."""
    found = []
    for path, *words in program_questions(view):
        answer = view.programs.answer(path, *words) or ""
        name = Path(path).name
        found.append(Program(name=name, path=path, version=_ssh_version(answer) or _mpi_version(answer)))
    return tuple(found)


def _ssh_version(answer: str) -> str | None:
    found = re.match(r"OpenSSH_[^\s,]+", answer)
    return found[0] if found else None


def _mpi_version(answer: str) -> str | None:
    """Return the name and version of an MPI, from the output of `mpirun --version`."""
    for pattern, name in (
        (r"\(Open MPI\)\s+(\S+)", "Open MPI"),
        (r"Intel\(R\) MPI Library.*?Version\s+(\d[\w.]*)", "Intel MPI"),
        (r"HYDRA build details:\s+Version:\s+(\S+)", "MPICH"),
    ):
        if found := re.search(pattern, answer, re.DOTALL):
            return f"{name} {found[1]}"
    first = answer.strip().splitlines()[:1]
    return first[0] if first else None
