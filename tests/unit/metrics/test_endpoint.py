"""The endpoint, over loopback: what Prometheus' own parser reads there, and who may read."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from farandole.base.metrics.address import MetricsAddress, parse_metrics_address
from farandole.base.metrics.endpoint import MetricsEndpoint, MetricsUnavailable
from farandole.base.metrics.readings import Reading, Sample, StepTimer

pytest.importorskip("prometheus_client")

ANY = MetricsAddress("127.0.0.1", 0)
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def reading() -> Reading:
    timer = StepTimer(iter([0.0, 0.02, 100.0]).__next__)
    for _ in range(3):
        timer.step()
    return [
        Sample("farandole_worker", 1.0, ("4f0c", "3", 'h"1')),
        Sample("farandole_world_size", 4.0),
        Sample("farandole_collectives", 12.0, ("allreduce",)),
        Sample("farandole_collectives", 2.0, ("allgather",)),
        ("farandole_step_seconds", timer.histogram()),
    ]


@pytest.fixture
def serve() -> Iterator[Callable[..., MetricsEndpoint]]:
    opened: list[MetricsEndpoint] = []

    def serve(**options: object) -> MetricsEndpoint:
        opened.append(MetricsEndpoint(ANY, reading, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield serve
    for endpoint in opened:
        endpoint.close()


def fetch(endpoint: MetricsEndpoint, path: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{endpoint.address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_prometheus_reads_the_reading(serve: Callable[..., MetricsEndpoint]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    code, kind, text = fetch(serve(), "/metrics")
    assert (code, kind.partition(";")[0]) == (200, "text/plain")
    samples = {
        (each.name, *each.labels.values()): each.value
        for f in text_string_to_metric_families(text)
        for each in f.samples
    }
    assert samples["farandole_collectives_total", "allreduce"] == 12.0
    assert samples["farandole_world_size",] == 4.0
    assert samples["farandole_worker_info", 'h"1', "4f0c", "3"] == 1.0
    assert samples["farandole_step_seconds_bucket", "0.025"] == 1.0
    assert samples["farandole_step_seconds_bucket", "60.0"] == 1.0
    assert samples["farandole_step_seconds_bucket", "+Inf"] == samples["farandole_step_seconds_count",] == 2.0
    assert samples["farandole_step_seconds_sum",] == pytest.approx(100.0)


def test_openmetrics_format_on_request(serve: Callable[..., MetricsEndpoint]) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    _, kind, text = fetch(serve(), "/metrics", Accept=OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert {family.name for family in text_string_to_metric_families(text)} >= {"farandole_collectives"}


def test_targets_are_those_of_http_service_discovery(serve: Callable[..., MetricsEndpoint]) -> None:
    groups = [{"targets": ["127.0.0.1:1"], "labels": {"farandole_worker": "0"}}]
    code, kind, text = fetch(serve(more={"/targets": lambda query: json.dumps(groups).encode()}), "/targets")
    assert (code, kind, json.loads(text)) == (200, "application/json", groups)
    assert fetch(serve(), "/targets")[0] == 404, "a worker knows no others"


def test_request_without_token_is_refused(serve: Callable[..., MetricsEndpoint]) -> None:
    endpoint = serve(token="s3cret", more={"/targets": lambda query: b"[]"})
    for path in ("/metrics", "/targets", "/else"):
        code, _, text = fetch(endpoint, path)
        assert (code, "farandole_" in text) == (401, False)
        assert fetch(endpoint, path, Authorization="Bearer s3cre")[0] == 401
    assert fetch(endpoint, "/metrics", Authorization="Bearer s3cret")[0] == 200


def test_only_get_is_answered(serve: Callable[..., MetricsEndpoint]) -> None:
    with socket.create_connection(tuple(serve().address), 20) as client:
        client.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 501")


def test_address_beyond_loopback_requires_a_token() -> None:
    with pytest.raises(MetricsUnavailable, match="without a token") as caught:
        MetricsEndpoint(MetricsAddress("0.0.0.0", 0), reading)
    assert "FARANDOLE_METRICS_TOKEN" in caught.value.hint
    MetricsEndpoint(MetricsAddress("0.0.0.0", 0), reading, "s3cret").close()


def test_port_in_use_is_reported(serve: Callable[..., MetricsEndpoint]) -> None:
    with pytest.raises(MetricsUnavailable, match="in use") as caught:
        MetricsEndpoint(serve().address, reading)
    assert "--metrics=PORT" in caught.value.hint


def test_address_of_another_machine_is_reported() -> None:
    with pytest.raises(MetricsUnavailable) as caught:
        MetricsEndpoint(MetricsAddress("192.0.2.1", 0), reading, "s3cret")
    assert caught.value.hint.startswith("choose an address of this machine")


def test_invalid_port_is_reported() -> None:
    """The workers of a host take ports one after the other, from the one that was named on."""
    with pytest.raises(MetricsUnavailable, match=r"metrics cannot be served on 127\.0\.0\.1:65536"):
        MetricsEndpoint(MetricsAddress("127.0.0.1", 65536), reading)


def test_token_may_have_any_characters(serve: Callable[..., MetricsEndpoint]) -> None:
    endpoint = serve(token="schlüssel")
    given = "Bearer schlüssel".encode().decode("latin-1")  # As curl sends it.
    assert fetch(endpoint, "/metrics", Authorization=given)[0] == 200
    assert fetch(endpoint, "/metrics", Authorization="Bearer schl")[0] == 401


def test_error_while_reading_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = MetricsEndpoint(ANY, lambda: [Sample("farandole_unheard_of", 1.0)])
    try:
        code, _, text = fetch(endpoint, "/metrics")
    finally:
        endpoint.close()
    assert (code, text) == (500, "this is an error of farandole's: KeyError: 'farandole_unheard_of'\n")
    assert "in families" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["::1", "::1:9478", "a:b:1"])
def test_ipv6_address_without_brackets_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"brackets: \[::1\]:9478"):
        parse_metrics_address(text)
    assert parse_metrics_address("[::1]:9478") == MetricsAddress("::1", 9478)
