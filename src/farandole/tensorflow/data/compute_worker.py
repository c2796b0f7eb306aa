"""Runs a data service on the workers of a job: `python -m horovod.tensorflow.data.compute_worker FILE`.

    farandole run -np 4 python -m horovod.tensorflow.data.compute_worker service.json

The file is for the script whose data the service prepares. When the training calls
`TfDataServiceConfig.read(FILE).compute_client().shutdown()`, the job ends.
"""

from __future__ import annotations

import argparse
import json
import secrets

from farandole.errors import InvalidRequestError
from farandole.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn, own_networks
from farandole.tensorflow.data.meeting_point import ComputeService
from farandole.worker.core.basics import current, init, rank, size

_KEY_BYTES = 32


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Serve until the service is shut down.

    Args:
        dispatchers: the number of dispatchers; the job's size is a multiple of it.
        dispatcher_side: the side on which dispatchers run, "compute" or "training".
        configfile: the file for the configuration.
        timeout: seconds that each process waits for the others.

    Raises:
        ValueError: the size is not a multiple of `dispatchers`.
    """
    init()
    if dispatchers < 1 or size() % dispatchers:
        raise InvalidRequestError(
            f"Number of processes ({size()}) must be a multiple of number of dispatchers ({dispatchers})."
        )
    service = None
    try:
        told = b""
        if rank() == 0:
            workers, key = size() // dispatchers, secrets.token_bytes(_KEY_BYTES)
            service = ComputeService(dispatchers, workers, key, own_networks())
            config = TfDataServiceConfig(dispatchers, workers, dispatcher_side, service.addresses(), key, timeout)
            config.write(configfile)
            told = json.dumps(config.to_dict()).encode()
        told = current().exchange("tensorflow.data.config", told)[0]
        compute_worker_fn(TfDataServiceConfig.from_dict(json.loads(told)))
        if service is not None:
            service.wait_for_workers(timeout)  # Other ranks' dispatchers ask here whether theirs have stopped.
    finally:
        if service is not None:
            service.shutdown()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configfile", help="the file that tells the training how to reach the service")
    parser.add_argument("--dispatchers", type=int, default=1, help="1: one for all ranks of the training")
    parser.add_argument("--dispatcher-side", default="compute", choices=("compute", "training"))
    parser.add_argument("--timeout", type=int, default=60, help="seconds that each process waits for the others")
    return parser.parse_args()


if __name__ == "__main__":
    given = _parse()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
