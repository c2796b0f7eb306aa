"""One worker of a team: it joins its peer's world, carries out the conductor's commands, and sleeps in between.

Started by the peer's own launcher, with the variables that `peers.base.worker_environment` sets. It talks to the
conductor over a Unix socket, which reaches across network namespaces, in lines of JSON:

    conductor: {"do": "prepare", "slot": "gloo", "work": "allreduce", "with": {"bytes": 4}}
    worker:    {"note": null} or {"unsupported": "why"} or {"error": "traceback"}
    conductor: {"do": "time", "slot": "gloo", "calls": 100}     worker: {"seconds": 0.001}     of one call
    conductor: {"do": "ask", "slot": "gloo"}                    worker: {"value": 0.5}         what the call returned
    conductor: {"do": "release", "slot": "gloo"}                worker: {}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import time
import traceback
from typing import Any

from benchmarks.peers.base import MODULES, Call, Peer, Unsupported


class Worker:
    """Carries out the conductor's commands."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._calls: dict[str, Call] = {}

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command and return the answer."""
        slot = command["slot"]
        if command["do"] == "prepare":
            self._release(slot)
            work = getattr(self._peer, command["work"], None)
            if work is None:
                return {"unsupported": f"has no {command['work']}"}
            self._calls[slot] = work(**command["with"])
            return {"note": getattr(self._calls[slot], "note", None)}
        if command["do"] == "time":
            return {"seconds": self._time(self._calls[slot], command["calls"])}
        if command["do"] == "ask":
            return {"value": self._calls[slot]()}
        self._release(slot)
        return {}

    def _time(self, call: Call, calls: int) -> float:
        times = getattr(call, "times", 1)
        rounds = max(1, calls // times)
        self._peer.barrier()
        if getattr(call, "times_itself", False):
            return sum(call() for _ in range(rounds)) / (rounds * times)
        started = time.perf_counter()
        for _ in range(rounds):
            call()
        return (time.perf_counter() - started) / (rounds * times)

    def _release(self, slot: str) -> None:
        self._calls.pop(slot, None)
        gc.collect()


def main() -> None:
    """Join the world, say hello, and carry out commands until the conductor closes the connection."""
    # Linux gives each session an equal share of the cores (autogroup). farandole starts every worker in a session of
    # its own, mpiexec does not: on a machine with other work, a fraction of one share would be left for each of its.
    with contextlib.suppress(PermissionError):
        os.setsid()
    peer: Peer = importlib.import_module(MODULES[os.environ["BENCHMARK_PEER"]]).join()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["BENCHMARK_SOCKET"])
        lines = connection.makefile("rw", encoding="utf-8")
        print(json.dumps({"rank": peer.rank}), file=lines, flush=True)
        worker = Worker(peer)
        for line in lines:
            try:
                answer = worker.obey(json.loads(line))
            except Unsupported as why:
                answer = {"unsupported": str(why)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=lines, flush=True)
    peer.leave()


if __name__ == "__main__":
    main()
