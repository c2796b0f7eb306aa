"""`python -m farandole.ray.submitted`: the entrypoint of a job that `farandole submit --on ray` has given to Ray.

It is the job's driver: it reserves the resources, runs the launcher, and exits with the job's code.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import Any, NoReturn

import msgspec

from farandole.base.wire.encoding import decode_json
from farandole.control.jobs.spec import JobSpec
from farandole.control.launcher.job.elastic import DIAL
from farandole.control.launcher.job.from_job import elastic_launch, fixed_launch
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.ray_jobs.request import SPEC_VARIABLE, resources_of
from farandole.errors import FarandoleError, SpecError
from farandole.ray.elastic_run import run_on_hosts
from farandole.ray.host_actors import Demand, HostActors
from farandole.ray.use_ray import use_ray

# A job in a queue waits for its resources until it is cancelled; this is longer than any cluster runs.
_WAIT_SECONDS = 1e7
_INTERRUPTED = 130


def launch_of(job: JobSpec) -> LaunchSpec:
    """Return the launch of a job whose hosts dial."""
    size = job.workers.replicas
    if job.is_elastic:
        return elastic_launch(job, size, DIAL, fills_at_once=True)
    return replace(fixed_launch(job, [Host("ray", size)]), hosts=())


def run(job: JobSpec) -> int:
    """Run a job on the cluster that this process is in, and return its exit code.

    Raises:
        FarandoleError: the job cannot be started.
    """
    if job.working_directory and not os.path.isdir(job.working_directory):
        raise SpecError(
            f"the nodes of the Ray cluster have no folder {job.working_directory}",
            "choose a folder that they share: --workdir DIR",
        )
    launch = launch_of(job)
    least, most = (job.workers.min, job.workers.max) if job.is_elastic else (launch.num_proc or 1,) * 2
    hosts = HostActors(Demand(least, most, *resources_of(job)), job.working_directory)
    use_ray().init(address="auto", log_to_driver=False)
    try:
        hosts.reserve(_WAIT_SECONDS)
        outcome = run_on_hosts(hosts, launch, {})
    finally:
        hosts.release()
    print(outcome.report, file=sys.stderr, end="")
    return outcome.exit_code


def main() -> int:
    """Run the job that the environment describes."""

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        return run(decode_json(os.environ.pop(SPEC_VARIABLE), JobSpec))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (KeyError, msgspec.DecodeError):
        print(f"error: {SPEC_VARIABLE} describes no job\nhint: farandole submit --on ray", file=sys.stderr)
    except FarandoleError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
