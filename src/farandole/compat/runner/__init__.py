"""`horovod.runner`: `horovod.run`, and the arguments of a job as an object."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_DEPRECATED = {"np": "num_proc", "min_np": "min_num_proc", "max_np": "max_num_proc"}


class _HorovodArgs(argparse.Namespace):
    """The arguments of an empty command line, whose attributes can be changed.

    `np`, `min_np` and `max_np` are other names of `num_proc`, `min_num_proc` and `max_num_proc`.
    """

    def __init__(self) -> None:
        from farandole.compat.runner.arguments import make_parser

        super().__init__(**vars(make_parser().parse_args([])))
        self.num_proc = 1

    def __getattr__(self, name: str) -> Any:
        if name in _DEPRECATED:
            return getattr(self, _DEPRECATED[name])
        raise AttributeError(f"a job has no argument {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(_DEPRECATED.get(name, name), value)


# Where Horovod has names that farandole has not.
_FRONT_ENDS = ("horovod.keras", "horovod.tensorflow", "horovod.tensorflow.keras")


def _with_names(modules: Sequence[str], func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a worker after importing modules that the sending process had imported.

    A module of Horovod's is unpickled as farandole's, which otherwise lacks the names that only Horovod has.
    """
    for name in modules:
        importlib.import_module(name)
    return func(*args, **kwargs)


def with_names(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for workers, in which the front ends used here have Horovod's names as well.

    Raises:
        SpecError: `func` is not a function.
    """
    from farandole.control.launcher.arguments import check_function

    check_function(func)
    return functools.partial(_with_names, tuple(name for name in _FRONT_ENDS if name in sys.modules), func)


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function on several new workers and return their results in rank order.

    The function, its arguments and results are pickled by cloudpickle. `farandole.run` does the same with fewer
    arguments.

    Args:
        func: called in every worker as `func(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: number of workers.
        min_num_proc: the minimum number of workers with which an elastic job continues.
        max_num_proc: the largest number of workers of an elastic job; None: one for each slot.
        slots: the number of slots of each host for which the script prints none.
        reset_limit: maximum number of times that an elastic job's workers may change; None: no limit.
        cooldown_range: the shortest and the longest time, in seconds, after which a host with a failed worker is used
            again.
        hosts: `name:slots,name:slots`.
        hostfile: file of lines `name slots=N`.
        host_discovery_script: a script that prints `name:slots` of the available hosts; makes the job elastic.
        start_timeout: seconds that workers wait in `init()` for the others, counted from the most recent call.
        ssh_port: the port of ssh on other hosts.
        ssh_identity_file: the private key for ssh to other hosts.
        disable_cache: accepted; nothing is cached.
        output_filename: folder in which the workers' output is saved as well.
        verbose: print the plan, and which options have no effect.
        use_gloo: run without MPI, regardless of HOROVOD_CPU_OPERATIONS.
        use_mpi: start the workers by mpirun, and send the data between hosts by MPI.
        mpi_args: arguments of mpirun, with `use_mpi`.
        network_interface: deprecated name of `network_interfaces`.
        network_interfaces: interfaces to use, separated by commas.
        executable: Python interpreter of the workers; this one by default.
        np: deprecated name of `num_proc`.
        min_np: deprecated name of `min_num_proc`.
        max_np: deprecated name of `max_num_proc`.

    Raises:
        ValueError: the arguments contradict each other, or such a job cannot be started here; nothing was started.
        RuntimeError: a worker failed. If the function raised, `__cause__` is its exception, if it could be pickled.

    Example:
        >>> import horovod
        >>> horovod.run(pow, (2, 5), num_proc=2)
        [32, 32]
    """
    from farandole.compat.runner import launch
    from farandole.control.launcher.arguments import check_call

    given = dict(locals())
    if hosts is not None and hostfile is not None:
        raise ValueError("hosts and hostfile cannot both be given; choose one.")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi cannot both be given; choose one.")
    job = _HorovodArgs()
    for name in ("min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range", "hosts", "hostfile"):
        setattr(job, name, given[name])
    for name in ("host_discovery_script", "start_timeout", "ssh_port", "ssh_identity_file", "output_filename"):
        setattr(job, name, given[name])
    job.num_proc, job.disable_cache, job.verbose = num_proc, disable_cache, verbose
    job.use_gloo, job.use_mpi, job.mpi_args, job.executable = use_gloo, use_mpi, mpi_args, executable
    _apply_deprecated(job, np=np, min_np=min_np, max_np=max_np)
    job.nics = _interfaces(network_interface, network_interfaces)
    check_call(func, args, {} if kwargs is None else kwargs)
    job.run_func = functools.partial(with_names(func), *args, **(kwargs or {}))
    results = launch._run(job)
    assert results is not None
    return results


def _apply_deprecated(job: _HorovodArgs, **old: int | None) -> None:
    for name, value in old.items():
        if value is not None:
            warnings.warn(f"{name}= is deprecated: use {_DEPRECATED[name]}=", DeprecationWarning, stacklevel=3)
            setattr(job, name, value)


def _interfaces(old: str | None, names: str | None) -> set[str] | None:
    if old is not None:
        warnings.warn("network_interface= is deprecated: use network_interfaces=", DeprecationWarning, stacklevel=3)
        names = names or old
    return {name.strip() for name in names.split(",")} if names else None
