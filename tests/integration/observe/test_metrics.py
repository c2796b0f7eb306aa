"""Metrics of real workers: what is scraped equals what the workers count themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import World, wait_until

OpenWorld = Callable[..., World]

pytest.importorskip("prometheus_client")


def work_and_compare(steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Do collectives; return what is scraped from this process, and what it counts itself."""
    import re
    import urllib.request

    import numpy as np

    import farandole
    import farandole.numpy as hvd
    from farandole.worker.core import basics
    from farandole.worker.observe.observer import _companion

    hvd.init()
    for _ in range(steps):
        hvd.allreduce(np.ones(1000, dtype=np.float32))
        farandole.count_step()
    hvd.allgather(np.ones(3))
    assert _companion._metrics is not None
    url = f"http://{_companion._metrics.address}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    scraped = {}
    for line in text.splitlines():
        if found := re.fullmatch(r"(farandole_\w+(?:\{[^}]*\})?) (\S+)", line):
            scraped[found[1]] = float(found[2])
    stats, session = hvd.stats(), basics.current()
    own = {
        "farandole_world_size": hvd.size(),
        "farandole_rank": hvd.rank(),
        "farandole_generation": session.world.generation,
        "farandole_steps_total": session.steps,
        "farandole_step_seconds_count": session.steps - 1,
        "farandole_agreement_rounds_total": stats["rounds"],
        "farandole_blocked_seconds_total": stats["blocked_seconds"],
    }
    for kind, counts in stats["operations"].items():
        for count, name in (("requests", "collectives"), ("buckets", "buckets"), ("bytes", "collective_bytes")):
            own[f'farandole_{name}_total{{operation="{kind}"}}'] = counts[count]
        for part in ("waiting", "negotiating", "moving"):
            own[f'farandole_{part}_seconds_total{{operation="{kind}"}}'] = counts[f"{part}_seconds"]
    return scraped, own


def end() -> tuple[int, bool]:
    """Leave; return how many threads serve metrics, and whether steps are still measured."""
    import threading

    import farandole.numpy as hvd
    from farandole.worker.core import basics

    session = basics.current()
    hvd.shutdown()
    return sum(each.name == "farandole-metrics" for each in threading.enumerate()), session.on_step is not None


def test_what_is_scraped_is_what_the_worker_counts(open_world: OpenWorld) -> None:
    world = open_world(2, FARANDOLE_METRICS="0", FARANDOLE_PROGRESS="0.05")
    for scraped, own in world.run(work_and_compare, 5):
        assert own["farandole_steps_total"] == 5
        assert own['farandole_collective_bytes_total{operation="allreduce"}'] >= 5 * 4000
        differences = {name: (scraped.get(name), value) for name, value in own.items() if scraped.get(name) != value}
        assert differences == {}
    wait_until(lambda: {rank for rank, told in world.progress() if told.metrics.startswith("127.0.0.1:")} == {0, 1})
    assert world.run(end) == [(0, False), (0, False)]


def test_without_the_setting_nothing_is_measured_or_served(open_world: OpenWorld) -> None:
    def look() -> tuple[bool, bool]:
        import sys

        import farandole.numpy as hvd
        from farandole.worker.core import basics

        hvd.init()
        return basics.current().on_step is None, "farandole.base.metrics.endpoint" in sys.modules

    assert open_world(1).run(look) == [(True, False)]


def test_a_port_that_is_taken_costs_the_metrics_and_not_the_training(open_world: OpenWorld) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        world = open_world(1, FARANDOLE_METRICS=str(taken.getsockname()[1]))

        def start() -> tuple[int, str]:
            import contextlib
            import io

            import farandole.numpy as hvd

            with contextlib.redirect_stderr(io.StringIO()) as said:
                hvd.init()
            return hvd.size(), said.getvalue()

        ((size, said),) = world.run(start)
    assert size == 1
    assert "Training goes on without metrics." in said
