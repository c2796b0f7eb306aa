"""The roster on its socket: its messages to workers, and the clients that it rejects."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from running_roster import SECRET, Running
from waiting import until

from farandole.base.wire import handshake
from farandole.base.wire.address import format_address, parse_address
from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import AuthenticationFailed, ConnectionLost, WireTimeout
from farandole.base.wire.frames import frame
from farandole.base.wire.rendezvous import (
    Failure,
    Measures,
    Progress,
    RendezvousError,
    ScheduledBatch,
    World,
)
from farandole.base.wire.roster_client import RosterClient
from farandole.control.roster import fixed
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Action, Evict, Place
from farandole.control.roster.service import RosterService


def raw(roster: Running) -> socket.socket:
    return socket.create_connection(parse_address(roster.address), 10)


def hung_up(sock: socket.socket) -> bool:
    """Read to the end; a reset is an end too."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_roster_listens_on_loopback_only(serve: Callable[..., Running]) -> None:
    assert serve(1).address.startswith("127.0.0.1:")


def test_a_world_has_every_place(serve: Callable[..., Running]) -> None:
    roster = serve(4)
    clients = [roster.client(rank) for rank in range(4)]
    with ThreadPoolExecutor(4) as pool:
        worlds = list(pool.map(lambda client, rank: client.join(f"c{rank}", 10), clients, range(4)))
    assert worlds[3] == World(
        generation=1,
        rank=3,
        size=4,
        contacts=("c0", "c1", "c2", "c3"),
        local_rank=1,
        local_size=2,
        cross_rank=1,
        cross_size=2,
        hostnames=("host0", "host1", "host0", "host1"),
    )
    for client in clients:
        client.close()


def test_client_with_wrong_secret_is_rejected(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    with pytest.raises(RendezvousError, match="FARANDOLE_SECRET") as caught:
        RosterClient.connect(roster.address, b"wrong", worker=0, timeout=10)
    assert isinstance(caught.value.__cause__, AuthenticationFailed)


def test_connection_with_wrong_proof_is_closed_before_anything_is_decoded(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    with raw(roster) as sock:
        sock.sendall(frame(handshake.PROTOCOL + bytes(handshake.NONCE_BYTES)))
        sock.sendall(frame(bytes(handshake.PROOF_BYTES)) + frame(b"\x82whatever"))
        assert hung_up(sock)
    assert any("does not hold this job's secret" in line for line in roster.log)


def test_recorded_handshake_cannot_be_replayed(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    sent: list[bytes] = []

    class Recorder(Channel):
        def send(self, payload: bytes, deadline: float | None = None) -> None:
            sent.append(payload)
            super().send(payload, deadline)

    with RosterClient(Recorder.connect(roster.address, SECRET, timeout=10), 0, roster.address) as client:
        client.report_failure("", "Genuine", None)
        client.join("", 10)
    assert len(sent) == 5
    with raw(roster) as sock:
        sock.sendall(b"".join(frame(payload) for payload in sent))
        assert hung_up(sock)
    assert [failure.exception for _, failure in roster.reports] == ["Genuine"]


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", (129).to_bytes(4, "little") + bytes(129), frame(b""), b"\0" * 64],
)
def test_connection_with_malformed_or_oversized_frames_is_closed(serve: Callable[..., Running], rubbish: bytes) -> None:
    roster = serve(1)
    with raw(roster) as sock:
        sock.sendall(rubbish)
        assert hung_up(sock)
    with roster.client(0) as client:
        assert client.join("", 10).size == 1


def test_silent_connection_is_closed(serve: Callable[..., Running]) -> None:
    roster = serve(1, handshake_seconds=0.1)
    with raw(roster) as sock:
        assert hung_up(sock)
    assert any("did not prove itself within 0.1 s" in line for line in roster.log)


def test_frame_limit_applies_to_authenticated_clients(serve: Callable[..., Running]) -> None:
    roster = serve(1, frame_limit=1000)
    with roster.client(0) as client, pytest.raises(RendezvousError):
        client.send_result(bytes(2000))


def test_silent_roster_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = format_address(*server.getsockname())
        with pytest.raises(RendezvousError) as caught:
            RosterClient.connect(address, SECRET, worker=0, timeout=0.1)
    assert isinstance(caught.value.__cause__, WireTimeout)


def test_missing_roster_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = format_address(*server.getsockname())
    with pytest.raises(RendezvousError, match=r"worker 3 cannot reach the roster .* refused.* launcher") as caught:
        RosterClient.connect(address, SECRET, worker=3, timeout=10)
    assert isinstance(caught.value.__cause__, ConnectionLost)


def test_client_authenticated_while_listener_closes_is_disconnected(
    serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio.wait_for may drop the cancellation: then this client was served for ever, and closing never ended."""
    accept, proving = AsyncChannel.accept, threading.Event()

    async def deaf(channel: AsyncChannel, secret: bytes, timeout: float) -> None:
        await accept(channel, secret, timeout)
        proving.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            pass

    monkeypatch.setattr(AsyncChannel, "accept", deaf)
    roster = serve(1)
    with roster.client(0) as client:
        assert proving.wait(10)
        asyncio.run_coroutine_threadsafe(roster.service.close(), roster._loop).result(5)
        with pytest.raises(RendezvousError):
            client.fetch_call()


def test_ipv6() -> None:
    async def serve() -> None:
        service = RosterService(fixed.FixedState((Place("here", 0, 1, 0, 1),)), SECRET)
        try:
            address = await service.start("::1")
        except OSError:
            pytest.skip("this machine has no IPv6")
        assert address.startswith("[::1]:")
        client = await asyncio.to_thread(RosterClient.connect, address, SECRET, worker=0)
        assert (await asyncio.to_thread(client.join, "", 10)).size == 1
        client.close()
        await service.close()

    asyncio.run(serve())


def test_join_times_out_with_names_of_missing_workers(serve: Callable[..., Running]) -> None:
    roster = serve(3)
    with (
        roster.client(1) as client,
        pytest.raises(RendezvousError, match=r"within 0\.1 s of the latest arrival: ranks 0, 2"),
    ):
        client.join("", 0.1)


def test_exit_is_reported_to_waiting_and_arriving_workers(serve: Callable[..., Running]) -> None:
    roster = serve(3)
    with roster.client(0) as early, roster.client(1) as late, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(early.join, "", 60)
        while not any("rank 0 joined" in line for line in roster.log):
            assert not waiting.done()
        roster.do(lambda: roster.service.finished(2, "exited with code 4"))
        for join in (lambda: waiting.result(10), lambda: late.join("", 60)):
            with pytest.raises(RendezvousError, match="rank 2 exited with code 4 before it joined") as caught:
                join()
            assert caught.value.rank == 2


def test_two_processes_with_same_rank_are_refused(serve: Callable[..., Running]) -> None:
    roster = serve(2)
    with (
        roster.client(0) as first,
        roster.client(0) as second,
        roster.client(1) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(first.join, "", 60)
        while not any("rank 0 joined" in line for line in roster.log):
            assert not waiting.done()
        with pytest.raises(RendezvousError, match="worker 0 joined twice"):
            second.join("", 10)
        other.join("", 10)
        assert waiting.result(10).generation == 1


def test_closing_ends_join_in_another_thread_which_can_be_repeated(serve: Callable[..., Running]) -> None:
    roster = serve(1 + 1)
    client = roster.client(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.join, "", 60)
        while not any("rank 0 joined" in line for line in roster.log):
            assert not waiting.done()
        client.close()
        with pytest.raises(RendezvousError):
            waiting.result(10)
    roster.wait_until_read(0)
    with roster.client(0) as again, roster.client(1) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(again.join, "", 10)
        assert other.join("", 10).generation == waiting.result(10).generation == 1


def test_last_messages_of_dead_worker_are_read(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    client = roster.client(0)
    client.report_failure("Traceback ...", "ValueError: x", None)
    client.close()
    roster.wait_until_read(0)
    assert roster.reports == [(0, Failure("Traceback ...", "ValueError: x", None))]


def test_progress_of_worker_is_received(serve: Callable[..., Running]) -> None:
    roster = serve(2)
    with roster.client(1) as client:
        client.report_progress(7, 0.5)
        client.report_progress(8, 0.75)
    roster.wait_until_read(1)
    assert roster.reports == [(1, Progress(7, 0.5)), (1, Progress(8, 0.75))]


def test_measurements_of_training_are_received(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    told = Measures(32, 512, 64, hosts=1, workers=1, local=32.0, step=0.2, sync=0.0, square=1.0, trace=9.0)
    with roster.client(0) as client:
        client.report_measures(told)
    roster.wait_until_read(0)
    assert roster.reports == [(0, told)]


def test_scheduled_batch_reaches_listening_and_arriving_workers(serve: Callable[..., Running]) -> None:
    roster = serve(0, elastic=Limits(1, 2))
    for worker in (0, 1):
        roster.do(lambda worker=worker: roster.service.expect(worker, "here"))
    heard: dict[int, list[object]] = {0: [], 1: []}
    with roster.client(0) as first, roster.client(1) as second:
        first.listen(heard[0].append)
        until(lambda: ScheduledBatch(0) in heard[0], "there is none")
        roster.do(lambda: roster.service.schedule_batch(96))
        until(lambda: ScheduledBatch(96) in heard[0], "it is told at once")
        second.listen(heard[1].append)
        until(lambda: ScheduledBatch(96) in heard[1], "it is told to a newcomer")
    assert ScheduledBatch(0) not in heard[1] and roster.service.scheduled_batch == 96


def test_a_call_and_its_result(serve: Callable[..., Running]) -> None:
    roster = serve(1, call=b"call")
    with roster.client(0) as client:
        assert client.fetch_call() == b"call"
        client.send_result(b"result")
    assert roster.service.results == {0: b"result"}


def test_job_without_call_refuses_fetch(serve: Callable[..., Running]) -> None:
    with serve(1).client(0) as client, pytest.raises(RendezvousError, match="no call to fetch"):
        client.fetch_call()


def test_failed_worker_that_does_not_end_is_killed(serve: Callable[..., Running]) -> None:
    killed: queue.SimpleQueue[int] = queue.SimpleQueue()

    def obey(action: Action) -> None:
        if isinstance(action, Evict):
            killed.put(action.worker)

    roster = serve(0, elastic=Limits(1, 2, timeout=0.3), obey=obey)

    def fail_and_end() -> None:
        roster.service.expect(0, "here")
        roster.service._fail(0, Failure("", "ValueError: boom", None))
        roster.service.finished(0, "exited with code 1")

    roster.do(fail_and_end)  # At once: in between its time could be up.
    roster.do(lambda: roster.service.expect(1, "here"))
    with roster.client(1) as client:
        client.report_failure("", "ValueError: boom")
    assert killed.get(timeout=10) == 1
    assert killed.empty(), "a worker that has ended is not killed"


def test_roster_continues_after_another_was_killed(serve: Callable[..., Running]) -> None:
    """All that it is given is what the other one has written down, before it told anyone."""
    written: list[ElasticState] = []
    first = serve(0, elastic=Limits(1, 3), remember=written.append)
    with ThreadPoolExecutor() as threads:
        for worker in (4, 7):
            first.do(lambda worker=worker: first.service.expect(worker, "here"))
        clients = [first.client(worker) for worker in (4, 7)]
        worlds = list(threads.map(lambda client: client.join("old", 10, trained=True), clients))
        assert [(world.generation, world.workers) for world in worlds] == [(1, (4, 7))] * 2
        clients[0].report_state(training=2)
        for client in clients:
            client.close()
        first.wait_until_read(4)
        known = msgspec.msgpack.decode(msgspec.msgpack.encode(written[-1]), type=ElasticState)

        second = serve(0, left=known)
        second.do(second.service.resume)
        assert second.service.world == (4, 7) and second.service.state.generation == 1
        second.do(lambda: second.service.expect(9, "here"))
        newcomer = second.client(9)
        shown = newcomer.join("new", 10, arriving=True)
        assert (shown.generation, shown.workers, shown.training, shown.local_rank) == (0, (4, 7, 9), 2, 2)
        third = threads.submit(newcomer.join, "new", 10)
        until(lambda: second.service.newcomers == [9], "the newcomer waits for the next world")
        clients = [second.client(worker) for worker in (4, 7)]
        joins = [threads.submit(client.join, "old", 10, generation=1, trained=True) for client in clients]
        world = third.result()
        assert (world.generation, world.workers, world.previous) == (2, (4, 7, 9), (0, 1, -1))
        assert all(join.result().generation == 2 for join in joins)
        for client in (*clients, newcomer):
            client.close()


def test_state_of_connections_and_timers_is_not_saved(serve: Callable[..., Running]) -> None:
    written: list[ElasticState] = []
    roster = serve(0, elastic=Limits(2, 3), remember=written.append)
    roster.do(lambda: roster.service.expect(0, "here"))
    roster.do(lambda: roster.service.expect(1, "here"))
    assert len(written) == 2
    client = roster.client(0)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.join, "c", 10)
        until(lambda: len(written) == 3, "it is not expected any more")
        client.close()
        assert isinstance(waiting.exception(10), RendezvousError)
        roster.wait_until_read(0)
    assert len(written) == 3
    roster.do(lambda: roster.service.promise(False))
    assert len(written) == 3
