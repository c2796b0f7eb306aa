"""`horovod.common.util`: functions with which Horovod's scripts and tests inspect an installation, and helpers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from farandole.compat.aliases import MISSING, home_of
from farandole.compat.exceptions import HorovodVersionMismatchError, get_version_mismatch_message
from farandole.worker.core import built

EXTENSIONS = ("tensorflow", "torch", "mxnet")

# Fails in a framework that sees no GPU.
SEES_GPU = {
    "tensorflow": "import tensorflow; assert tensorflow.config.list_physical_devices('GPU')",
    "torch": "import torch; assert torch.cuda.is_available()",
}

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])


def _cache(function: Function) -> Function:
    """Cache a function's results by its arguments."""
    return functools.cache(function)  # type: ignore[return-value]


# --- the installation ---------------------------------------------------------------------------------------------


@_cache
def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be used: its front end is imported in a separate process.

    Example:
        >>> extension_available("mxnet")
        False
    """
    name = f"horovod.{ext_base_name}"
    home = home_of(name)
    if name in MISSING or home is None:
        return False
    return _runs(f"import {home}", verbose)


@_cache
def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework finds a GPU, determined in a separate process."""
    question = SEES_GPU.get(ext_base_name)
    return question is not None and _runs(question, verbose)


def _runs(code: str, verbose: bool) -> bool:
    # A separate process: loading a framework here could start threads, and use a GPU.
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=not verbose,
        check=False,
    )
    return done.returncode == 0


def mpi_built(verbose: bool = False) -> bool:
    """Return whether jobs can communicate through MPI."""
    return built.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Return whether jobs can run without MPI."""
    return built.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """Return the version of NCCL that carries GPU tensors, or 0."""
    return built.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Return whether IBM's DDL carries tensors."""
    return built.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Return whether Intel's oneCCL carries tensors."""
    return built.ccl_built()


def get_ext_suffix() -> str:
    """Return the suffix of this Python's extension modules."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of an extension module: `args` are the folders beside the file `pkg_path`, and its name."""
    *folders, name = args
    return os.path.join(os.path.dirname(pkg_path), *folders, name + get_ext_suffix())


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Check that a framework can be used, by its front end: farandole has no extension modules.

    Raises:
        ImportError: it cannot be used.
    """
    framework = args[0] if args and args[0] in EXTENSIONS else os.path.basename(os.path.dirname(pkg_path))
    if not extension_available(framework):
        raise ImportError(f"{ext_name} cannot be used here. See: horovodrun --check-build", name=framework)


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Compare an expected version of a framework with the installed one; warn of a difference.

    Raises:
        HorovodVersionMismatchError: they differ, and `exception` is not None.
    """
    from importlib import metadata

    try:
        installed: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = None
    if installed == version:
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, installed) from exception
    warnings.warn(get_version_mismatch_message(name, version, installed), stacklevel=2)


# --- helpers --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables temporarily; those that are None are not changed."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    earlier = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in earlier.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Return a function that returns the operation for the arguments `op` and `average`, of which only one may be
    given.

    Args:
        reduce_ops: an object with the attributes `Average` and `Sum`.
    """

    def handle(op: Any, average: bool | None) -> Any:
        if op is None and average is None:
            return reduce_ops.Average
        if average is None:
            return op
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("average= is deprecated: use op=Average or op=Sum", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return handle


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number is a power of two."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(l: Sequence[Item], n: int) -> list[Sequence[Item]]:  # noqa: E741 - Horovod's name
    """Split a list into `n` parts of nearly equal length, the longer ones first.

    Example:
        >>> split_list([1, 2, 3, 4, 5], 2)
        [[1, 2, 3], [4, 5]]
    """
    short, longer = divmod(len(l), n)
    ends = [part * short + min(part, longer) for part in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def is_iterable(x: Any) -> bool:
    """Return whether `iter(x)` works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare versions by their first three numbers.

    Example:
        >>> is_version_greater_equal_than("2.13.0+cpu", "2.4.0")
        True
    """
    if target.count(".") != 2:
        raise ValueError(f"the version to compare with has three numbers, such as 1.2.3, but not {target!r}")
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    found = [re.match(r"\d+", part) for part in version.split(".")[:3]]
    numbers = [int(match.group()) if match else 0 for match in found]
    return (*numbers, *[0] * (3 - len(numbers)))
