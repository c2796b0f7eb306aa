"""Start farandole's workers on several hosts, as the launcher does on one.

    python -m benchmarks.peers.across AGENT WORKERS ADDRESS... -- COMMAND...

runs on the first host, serves the roster there, starts WORKERS workers on every host with AGENT, which is called as ssh
is, and ends with them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import sys

from farandole.control.roster import fixed
from farandole.control.roster.events import Place
from farandole.control.roster.service import RosterService


async def run(agent: str, workers: int, addresses: list[str], command: list[str]) -> int:
    """Run the job; return the first exit code that is not 0."""
    hosts = len(addresses)
    places = tuple(Place(f"h{host}", local, workers, host, hosts) for host in range(hosts) for local in range(workers))
    secret = secrets.token_bytes(32)
    service = RosterService(fixed.State(places), secret)
    # The workers' environment is this process's: the secret is on no command line.
    os.environ |= {"FARANDOLE_ROSTER": await service.start(addresses[0]), "FARANDOLE_SECRET": secret.hex()}
    processes = []
    for rank, place in enumerate(places):
        address = addresses[place.cross_rank]
        own = {"FARANDOLE_RANK": rank, "FARANDOLE_LISTEN": address, "FARANDOLE_HOST_KEY": place.hostname}
        line = " ".join(["exec", "env", *(f"{name}={value}" for name, value in own.items()), shlex.join(command)])
        processes.append(await asyncio.create_subprocess_exec(agent, address, line))
    codes = await asyncio.gather(*(process.wait() for process in processes))
    await service.close()
    return next((code for code in codes if code), 0)


def main() -> None:
    """Read the command line and run."""
    cut = sys.argv.index("--")
    agent, workers, *addresses = sys.argv[1:cut]
    sys.exit(asyncio.run(run(agent, int(workers), addresses, sys.argv[cut + 1 :])))


if __name__ == "__main__":
    main()
