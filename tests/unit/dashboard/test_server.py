"""The dashboard's server over loopback: access, read-only requests, and the data that it serves."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from played_dashboard import TOKEN, PlayedSource, served

from farandole.base.metrics.address import MetricsAddress
from farandole.base.metrics.endpoint import MetricsEndpoint
from farandole.control.dashboard.access import Gate, Receive, Scope, Send
from farandole.control.dashboard.feed import JobFeed, Overview
from farandole.control.dashboard.serve import address_with
from farandole.control.dashboard.sources import UrlSource, line_of_log, view_of_status
from farandole.control.jobs.errors import Refused, Unreachable
from farandole.control.jobs.status import JobState, JobStatus
from farandole.control.jobs.view import JobView, OutputLine


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(PlayedSource()) as url:
        yield url


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def cookie_of(address: str) -> str:
    return f"farandole-dashboard-{urlsplit(address).port}={TOKEN}"


def test_requests_without_token_are_refused(address: str) -> None:
    for path in ("/", "/api/overview", "/api/job/otter", "/events", "/static/page.js", "/?token=wrong"):
        code, headers, text = ask(address, path)
        assert (code, "otter" in text) == (401, False), path
        assert "default-src 'none'" in headers["content-security-policy"]
    assert ask(address, "/", Cookie=cookie_of(address) + "x")[0] == 401


def test_the_token_in_the_address_becomes_a_cookie(address: str) -> None:
    code, headers, _ = ask(address, f"/?token={TOKEN}")
    assert (code, headers["location"]) == (303, "/")
    name, *attributes = headers["set-cookie"].split("; ")
    assert name == cookie_of(address)
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    code, headers, text = ask(address, "/", Cookie=name)
    assert code == 200 and "<h1" in text
    assert headers["referrer-policy"] == "no-referrer" and headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(address: str, method: str) -> None:
    for path in ("/", "/api/job/otter", "/events"):
        assert ask(address, path, method, Cookie=cookie_of(address))[0] == 405


def test_unknown_host_header_is_refused(address: str) -> None:
    assert ask(address, "/", Host="evil.example", Cookie=cookie_of(address))[0] == 400
    port = urlsplit(address).port
    assert ask(address, "/", Host=f"localhost:{port}", Cookie=cookie_of(address))[0] == 200


def test_list_of_jobs_and_single_job_are_served(address: str) -> None:
    cookie = cookie_of(address)
    overview = json.loads(ask(address, "/api/overview", Cookie=cookie)[2])
    assert [job["name"] for job in overview["jobs"]] == ["otter", "lynx"]
    assert overview["cluster"]["policy"] == "fair-share"
    assert overview["job"] is None
    job = json.loads(ask(address, "/api/job/otter", Cookie=cookie)[2])["job"]
    assert job["lines"][1]["text"] == "<script>alert(1)</script>"
    assert ask(address, "/api/job/nobody", Cookie=cookie)[0] == 404
    assert ask(address, "/static/..%2fapp.py", Cookie=cookie)[0] == 404


def events(address: str, count: int, **headers: str) -> list[tuple[int, dict[str, Any]]]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        connection.request("GET", "/events?job=otter", headers={"Cookie": cookie_of(address), **headers})
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        found = []
        for _ in range(count):
            number = int(answer.readline().decode().removeprefix("id: "))
            found.append((number, json.loads(answer.readline().decode().removeprefix("data: "))))
            assert answer.readline() == b"\n"
        return found
    finally:
        connection.close()


def test_stream_has_each_line_once_and_resumes(address: str) -> None:
    told = events(address, 3)
    numbers = [line["n"] for _, model in told for line in model["job"]["lines"]]
    assert numbers == list(range(told[-1][0])), "no line is missing, none comes twice"
    ((_, again),) = events(address, 1, **{"Last-Event-ID": str(told[-1][0])})
    assert all(line["n"] >= told[-1][0] for line in again["job"]["lines"])


class Counting(PlayedSource):
    """Counts how often it is looked at."""

    views = 0

    def view(self, name: str, lines_from: int) -> Any:
        self.views += 1
        return super().view(name, lines_from)


def test_many_viewers_cause_one_request_to_the_job() -> None:
    now = [10.0]
    source = Counting()
    feed = JobFeed(source, "otter", lambda: now[0])
    models = [feed.model(0) for _ in range(5)]
    assert source.views == 1
    assert len({json.dumps(model, sort_keys=True) for model in models}) == 1
    now[0] += 1
    assert len(feed.model(0)["lines"]) == 5
    assert source.views == 2


def test_unresponsive_job_keeps_its_last_view() -> None:
    now = [10.0]
    source = Counting()
    feed = JobFeed(source, "otter", lambda: now[0])
    feed.model(0)

    def fail(name: str, lines_from: int) -> Any:
        raise Unreachable("its launcher does not answer", "try again")

    source.view = fail  # type: ignore[method-assign]
    now[0] += 1
    model = feed.model(0)
    assert model["error"] == "its launcher does not answer. try again"
    assert model["name"] == "otter" and model["hosts"]


class Printing(PlayedSource):
    """A job whose launcher is replaced by another one, and which then ends."""

    first, second = ["a", "b", "c"], ["d"]
    phase = 1

    def view(self, name: str, lines_from: int) -> tuple[JobStatus, JobView]:
        status, view = super().view(name, lines_from)
        if self.phase == 3:
            status = JobStatus(name, JobState.SUCCEEDED)
            return status, view_of_status(status)
        printed = self.first if self.phase == 1 else self.second
        lines = [line_of_log(number, text) for number, text in enumerate(printed) if number >= lines_from]
        return status, msgspec.structs.replace(view, lines=tuple(lines), lines_next=len(printed))

    def output(self, name: str) -> list[OutputLine]:
        return [line_of_log(number, text) for number, text in enumerate([*self.first, *self.second, "e"])]


def test_open_page_gets_each_line_once_from_launcher_successor_and_log() -> None:
    now = [0.0]
    source = Printing()
    feed = JobFeed(source, "otter", lambda: now[0])
    seen, cursor = [], 0
    for now[0], source.phase in ((0.0, 1), (1.0, 2), (2.0, 2), (3.0, 3)):
        model = feed.model(cursor)
        seen += [line["text"] for line in model["lines"]]
        cursor = model["lines_next"]
        assert model["lines_first"] == 0
    assert seen == ["a", "b", "c", "d", "e"]
    assert [line["text"] for line in feed.model(1000)["lines"]] == seen, "a page of an earlier server gets all lines"


def test_changed_log_replaces_the_shown_lines() -> None:
    now = [0.0]
    source = Printing()
    feed = JobFeed(source, "otter", lambda: now[0])
    cursor = feed.model(0)["lines_next"]
    source.phase, source.first, now[0] = 3, ["A"], 1.0
    model = feed.model(cursor)
    assert [line["text"] for line in model["lines"]] == ["A", "d", "e"]
    assert model["lines_first"] == cursor == model["lines"][0]["n"]


def test_page_opened_later_has_the_current_log() -> None:
    now = [0.0]
    printed = ["one"]

    class InAQueue(PlayedSource):
        def view(self, name: str, lines_from: int) -> tuple[JobStatus, JobView]:
            status = JobStatus(name, JobState.RUNNING)
            return status, view_of_status(status)

        def output(self, name: str) -> list[OutputLine]:
            return [line_of_log(number, text) for number, text in enumerate(printed)]

    feed = JobFeed(InAQueue(), "otter", lambda: now[0])
    opened = feed.model(0)
    assert [line["text"] for line in opened["lines"]] == ["one"]
    printed.append("two")
    for now[0] in (1.0, 2.0, 30.0):
        assert feed.model(opened["lines_next"])["lines"] == [], "a page that is open asks for no whole log again"
    now[0] = 31.0
    assert [line["text"] for line in feed.model(0)["lines"]] == ["one", "two"]
    assert [line["text"] for line in feed.model(opened["lines_next"])["lines"]] == ["two"]
    printed.append("three")
    now[0] = 33.0
    assert len(feed.model(0)["lines"]) == 2, "it was read a moment ago"


def test_unknown_job_names_create_no_feeds() -> None:
    overview = Overview(PlayedSource())
    assert overview.feed("nobody") is None
    assert overview.feed("otter") is overview.feed("otter")


def test_the_metrics_of_a_job_are_a_source() -> None:
    pytest.importorskip("prometheus_client")
    import msgspec

    _, view = PlayedSource().view("otter", 0)
    more = {"/view": lambda query: msgspec.json.encode(view)}
    endpoint = MetricsEndpoint(MetricsAddress("127.0.0.1", 0), lambda: [], "s3cret", more)
    try:
        url = f"http://{endpoint.address}/metrics"
        status, seen = UrlSource(url, "s3cret").view("", 0)
        assert (status.name, status.workers, seen) == ("otter", 4, view)
        with pytest.raises(Refused, match="401"):
            UrlSource(url, "").jobs()
    finally:
        endpoint.close()
    with pytest.raises(Unreachable):
        UrlSource(url, "").jobs()


@pytest.mark.parametrize("said", [b"<html>Sign in</html>", b"[]", b'{"workers": 3}', b"\xff"])
def test_metrics_address_of_another_program_is_reported(said: bytes) -> None:
    pytest.importorskip("prometheus_client")
    endpoint = MetricsEndpoint(MetricsAddress("127.0.0.1", 0), lambda: (), "", {"/view": lambda query: said})
    try:
        with pytest.raises(Refused, match="has no data about a job"):
            UrlSource(f"http://{endpoint.address}", "").jobs()
    finally:
        endpoint.close()


@pytest.mark.parametrize("token", ["a+b/c==", "a;b, c", "schlüssel", "1%2B1", '"quoted"'])
def test_token_chosen_by_user_works_in_url_and_cookie(token: str) -> None:
    async def asked(scope: dict[str, Any]) -> list[MutableMapping[str, Any]]:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        gate = Gate(app, token, 8478, None)
        await gate(
            {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], **scope}, receive, send
        )
        return sent

    address = urlsplit(address_with(MetricsAddress("127.0.0.1", 8478), token))
    first = asyncio.run(asked({"query_string": address.query.encode("ascii")}))
    assert first[0]["status"] == 303
    cookie = dict(first[0]["headers"])[b"set-cookie"].partition(b"; ")[0]
    assert asyncio.run(asked({"headers": [(b"cookie", cookie)]}))[0]["status"] == 200
    assert asyncio.run(asked({"headers": [(b"cookie", cookie[:-1])]}))[0]["status"] == 401
