"""Sending a directory: both ends against each other in memory, through the codec, without processes."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farandole.base.wire.frames import Codec
from farandole.control.agent import cache as agent_cache
from farandole.control.agent import files as agent_files
from farandole.control.agent.file_messages import (
    PIECE_BYTES,
    Damaged,
    File,
    FromFiles,
    Link,
    NotShipped,
    Offer,
    Piece,
    Shipped,
    ToFiles,
)
from farandole.control.agent.files import Receiver
from farandole.control.agent.protocol import FromAgent, ToAgent
from farandole.control.launcher.background import errors_are_told
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.ship import send
from farandole.control.launcher.ship.file_list import Manifest, build_manifest
from farandole.control.launcher.ship.send import PieceReader, Shipment, Shipping
from farandole.errors import SpecError

TO_AGENT: Codec[ToAgent] = Codec(ToAgent)
FROM_AGENT: Codec[FromAgent] = Codec(FromAgent)
WINDOW = 3 * PIECE_BYTES

Tamper = Callable[[ToAgent], ToAgent]


class Wire:
    """A shipment and a receiver, and the messages between them, delivered one at a time."""

    def __init__(self, manifest: Manifest, cache: Path, job: str = "job", tamper: Tamper = lambda m: m) -> None:
        self.shipment = Shipment(manifest, PieceReader(manifest), job, WINDOW)
        self.receiver = Receiver(os.fsencode(cache))
        self.to_agent: deque[ToAgent] = deque(self.shipment.begin())
        self.from_agent: deque[FromAgent] = deque()
        self.pieces: list[Piece] = []
        self.said: list[FromAgent] = []
        self.delivered = 0
        self._tamper = tamper

    def deliver(self) -> bool:
        """Deliver one message, or let the receiver work a little; False when there is nothing to do."""
        if self.to_agent:
            message = self._tamper(self.to_agent.popleft())
            if isinstance(message, Piece):
                self.pieces.append(message)
            order = TO_AGENT.decode(TO_AGENT.encode(message))
            assert isinstance(order, Offer | Piece)
            self.from_agent += self.receiver.carry_out(order)
        elif self.receiver.busy:
            self.from_agent += self.receiver.step()
        elif self.from_agent:
            said = FROM_AGENT.decode(FROM_AGENT.encode(self.from_agent.popleft()))
            self.said.append(said)
            self.to_agent += self.shipment.heard(said)  # type: ignore[arg-type]
        else:
            return False
        self.delivered += 1
        return True

    def run(self) -> Path:
        """Deliver all, and return where the tree is."""
        while self.deliver():
            assert self.delivered < 100_000
        assert self.shipment.directory is not None
        self.receiver.close()
        return Path(self.shipment.directory)

    def sent(self) -> int:
        """Return how many bytes of files were sent."""
        return self.shipment.done


def snapshot(root: Path) -> dict[str, object]:
    """Return all that is to arrive of a tree."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = os.fsencode(path.relative_to(root)).decode("latin-1")
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "directory"
        else:
            state = path.stat()
            found[name] = path.read_bytes(), bool(state.st_mode & 0o100), state.st_mtime_ns
    return found


# --- both ends ---------------------------------------------------------------------------------------------------


def test_tree_arrives_unchanged(project: Path, tmp_path: Path) -> None:
    wire = Wire(build_manifest(str(project)), tmp_path / "cache")
    tree = wire.run()
    assert tree == tmp_path / "cache" / "trees" / "job" / "project"
    assert snapshot(tree) == snapshot(project)
    assert (
        wire.shipment.done == wire.shipment.total == sum(file.size for file in wire.shipment._manifest.files.values())
    )
    assert not list((tmp_path / "cache" / "partial").iterdir())


def test_existing_files_are_not_sent_again(project: Path, tmp_path: Path) -> None:
    Wire(build_manifest(str(project)), tmp_path / "cache").run()
    (project / "train.py").write_text("print('changed')\n")
    (project / "words.txt").rename(project / "package" / "words.txt")
    wire = Wire(build_manifest(str(project)), tmp_path / "cache", "another job")
    assert snapshot(wire.run()) == snapshot(project)
    assert [piece.offset for piece in wire.pieces] == [0]
    assert wire.sent() == len("print('changed')\n")


def test_complete_cache_takes_one_round_trip(project: Path, tmp_path: Path) -> None:
    Wire(build_manifest(str(project)), tmp_path / "cache").run()
    wire = Wire(build_manifest(str(project)), tmp_path / "cache")
    wire.run()
    assert [type(message).__name__ for message in wire.said] == ["Lacking", "Shipped"]


def test_data_is_compressed_if_it_becomes_smaller(project: Path, tmp_path: Path) -> None:
    manifest = build_manifest(str(project))
    wire = Wire(manifest, tmp_path / "cache")
    wire.run()
    names = {file.digest: os.fsdecode(file.path) for file in manifest.files.values()}
    packed = {names[piece.digest] for piece in wire.pieces if piece.packed}
    assert "words.txt" in packed
    assert not packed & {"noise.bin", "exact.bin", "run.sh"}
    assert max(len(piece.data) for piece in wire.pieces) <= PIECE_BYTES


def test_window_limits_bytes_in_transit(project: Path, tmp_path: Path) -> None:
    manifest = build_manifest(str(project))
    wire = Wire(manifest, tmp_path / "cache")
    most = 0
    while wire.deliver():
        most = max(most, wire.shipment._way_bytes)
    assert wire.shipment.directory is not None
    assert 2 * PIECE_BYTES < most < WINDOW + PIECE_BYTES
    assert wire.shipment._way_bytes == 0


def test_workers_cannot_change_cached_files(project: Path, tmp_path: Path) -> None:
    tree = Wire(build_manifest(str(project)), tmp_path / "cache").run()
    (tree / "train.py").write_text("spoilt")
    (tree / "run.sh").unlink()
    assert snapshot(Wire(build_manifest(str(project)), tmp_path / "cache", "next").run()) == snapshot(project)


def test_large_offer_is_sent_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_BATCH_ENTRIES", 7)
    root = tmp_path / "project"
    root.mkdir()
    for number in range(50):
        (root / f"{number}.py").write_text(str(number % 20))
    wire = Wire(build_manifest(str(root)), tmp_path / "cache")
    assert snapshot(wire.run()) == snapshot(root)
    assert len(wire.pieces) == 20


def test_directory_of_ignored_files_is_created(project: Path, tmp_path: Path) -> None:
    (project / ".gitignore").write_text("*.log\n")
    (project / "outputs" / "old.log").write_text("x")
    assert (Wire(build_manifest(str(project)), tmp_path / "cache").run() / "outputs").is_dir()


def random_tree(seed: int, root: Path) -> Path:
    dice = random.Random(seed)
    directories = [root]
    for number in range(dice.randint(1, 8)):
        parent = dice.choice(directories)
        parent.mkdir(parents=True, exist_ok=True)
        kind = dice.choice(["directory", "small", "small", "large", "link"])
        path = parent / f"{kind}{number}"
        if kind == "directory":
            path.mkdir()
            directories.append(path)
        elif kind == "link":
            path.symlink_to("small0")
        else:
            size = dice.randint(0, 50) if kind == "small" else dice.randint(PIECE_BYTES, 3 * PIECE_BYTES)
            path.write_bytes(dice.choice([dice.randbytes(size), b"a" * size]))
    return root


@pytest.mark.parametrize("seed", range(6))
def test_transfer_resumes_after_any_interruption(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_files, "_SLICE_SECONDS", 0)  # One step at a time, however fast this machine is.
    root = random_tree(seed, tmp_path / "project")
    manifest = build_manifest(str(root))
    whole = Wire(manifest, tmp_path / "whole")
    whole.run()
    for cut in range(1, whole.delivered):
        cache = tmp_path / f"cache{cut}"
        first = Wire(manifest, cache, "first")
        while first.delivered < cut:
            first.deliver()
        first.receiver.close()
        second = Wire(manifest, cache, "second")
        assert snapshot(second.run()) == snapshot(root)
        # What was delivered is not sent again.
        assert second.sent() <= whole.sent() - sum(_kept(piece, manifest) for piece in first.pieces)


def _kept(piece: Piece, manifest: Manifest) -> int:
    size = manifest.files[piece.digest].size
    return min(PIECE_BYTES, size - piece.offset)


def test_partial_file_is_resumed(project: Path, tmp_path: Path) -> None:
    manifest = build_manifest(str(project))
    noise = next(file for file in manifest.files.values() if file.path == b"noise.bin")
    first = Wire(manifest, tmp_path / "cache", "first")
    while not any(piece.digest == noise.digest and piece.offset > 0 for piece in first.pieces):
        first.deliver()
    first.receiver.close()
    second = Wire(manifest, tmp_path / "cache", "second")
    assert snapshot(second.run()) == snapshot(project)
    assert min(piece.offset for piece in second.pieces if piece.digest == noise.digest) == 2 * PIECE_BYTES


@pytest.mark.parametrize("left", [PIECE_BYTES, 3 * PIECE_BYTES + 17, 4 * PIECE_BYTES])
def test_corrupt_partial_file_is_dropped(project: Path, tmp_path: Path, left: int) -> None:
    manifest = build_manifest(str(project))
    noise = next(file for file in manifest.files.values() if file.path == b"noise.bin")
    partial = tmp_path / "cache" / "partial"
    partial.mkdir(parents=True)
    (partial / noise.digest.hex()).write_bytes(b"z" * left)
    wire = Wire(manifest, tmp_path / "cache")
    assert snapshot(wire.run()) == snapshot(project)
    assert (Damaged(noise.digest) in wire.said) == (left <= noise.size)


def damage_once(position: int) -> Tamper:
    """Return what turns a byte of one piece round."""
    seen = 0

    def tamper(message: ToAgent) -> ToAgent:
        nonlocal seen
        if isinstance(message, Piece):
            seen += 1
            if seen == position:
                data = bytearray(message.data)
                data[len(data) // 2] ^= 0x20
                return Piece(message.digest, message.offset, bytes(data), message.packed)
        return message

    return tamper


def test_damaged_piece_is_sent_again(project: Path, tmp_path: Path) -> None:
    manifest = build_manifest(str(project))
    whole = Wire(manifest, tmp_path / "whole")
    whole.run()
    for position in range(1, len(whole.pieces) + 1):
        wire = Wire(manifest, tmp_path / f"cache{position}", tamper=damage_once(position))
        assert snapshot(wire.run()) == snapshot(project)
        # In packed data that repeats itself, another distance may mean the same bytes.
        assert wire.pieces[position - 1].packed or sum(isinstance(message, Damaged) for message in wire.said) == 1


def test_permanently_damaged_file_is_an_error(project: Path, tmp_path: Path) -> None:
    def tamper(message: ToAgent) -> ToAgent:
        return Piece(message.digest, message.offset, b"?", False) if isinstance(message, Piece) else message

    wire = Wire(build_manifest(str(project)), tmp_path / "cache", tamper=tamper)
    with pytest.raises(SpecError, match="changed while it was being sent"):
        wire.run()
    wire.receiver.close()


def test_two_jobs_can_share_a_cache(project: Path, tmp_path: Path) -> None:
    manifest = build_manifest(str(project))
    dice = random.Random(7)
    wires = [Wire(manifest, tmp_path / "cache", "same") for _ in range(3)]
    going = list(wires)
    while going:
        wire = dice.choice(going)
        if not wire.deliver():
            going.remove(wire)
    trees = {wire.run() for wire in wires}
    assert len(trees) == 3
    for tree in trees:
        assert snapshot(tree) == snapshot(project)


def test_file_changed_during_transfer_is_an_error(project: Path, tmp_path: Path) -> None:
    for change in (
        lambda path: path.write_bytes(b"other"),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: path.unlink(),
    ):
        manifest = build_manifest(str(project))
        content = (project / "noise.bin").read_bytes()
        change(project / "noise.bin")
        wire = Wire(manifest, tmp_path / "cache")
        with pytest.raises(SpecError, match=r"^noise\.bin (changed while it was being sent|cannot be read any more)"):
            wire.run()
        wire.receiver.close()
        (project / "noise.bin").write_bytes(content)


# --- hosts that cannot -------------------------------------------------------------------------------------------


def failure(wire: Wire) -> SpecError:
    with pytest.raises(SpecError) as caught:
        wire.run()
    wire.receiver.close()
    return caught.value


def test_full_disk_is_reported(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    manifest = build_manifest(str(project))
    with monkeypatch.context() as patch:
        patch.setattr(agent_files.os, "pwrite", full)
        error = failure(Wire(manifest, tmp_path / "cache"))
    assert error.message == "No space left on device"
    assert (
        error.hint == f"free disk space for {tmp_path}/cache, or name a directory with enough space with --ship-cache"
    )
    assert snapshot(Wire(manifest, tmp_path / "cache").run()) == snapshot(project)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs to mount a file system: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_really_full_disk_is_reported(project: Path, small_disk: Path) -> None:
    error = failure(Wire(build_manifest(str(project)), small_disk / "cache"))
    assert "No space left on device" in error.message
    assert "--ship-cache" in error.hint


def test_nothing_is_accepted_after_failure(project: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    wire = Wire(build_manifest(str(project)), tmp_path / "cache")
    error = failure(wire)
    assert error.message == f"{tmp_path}/cache/objects: Not a directory"
    assert "must be a directory that can be written to" in error.hint
    assert list(wire.receiver.carry_out(Offer("job", "x", "", (), True))) == []
    assert not wire.receiver.busy


@pytest.mark.parametrize("path", [b"../x", b"/etc/x", b"a//b", b"", b"a/./b", b"a\0b", b"a/.."])
def test_paths_outside_the_tree_are_refused(path: bytes, tmp_path: Path) -> None:
    receiver = Receiver(os.fsencode(tmp_path / "cache"))
    answers = list(receiver.carry_out(Offer("job", "x", "", (File(path, 0, False, 0, bytes(32)),), True)))
    assert isinstance(answers[0], NotShipped)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    receiver = Receiver(os.fsencode(tmp_path / "cache"))
    entries = (Link(b"a", os.fsencode(outside)), File(b"a/b", 0, False, 0, bytes(32)))
    said = list(receiver.carry_out(Offer("job", "x", "", entries, True)))
    while receiver.busy:
        said += receiver.step()
    assert isinstance(said[-1], NotShipped)
    assert not list(outside.iterdir())


def test_cache_directory_can_be_chosen(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    manifest = build_manifest(str(project))
    for named, there in (("~/elsewhere", "elsewhere"), ("", "xdg/farandole/ship")):
        wire = Wire(manifest, tmp_path)
        wire.receiver = Receiver()
        wire.shipment = Shipment(manifest, PieceReader(manifest), "job", WINDOW, named)
        wire.to_agent = deque(wire.shipment.begin())
        assert wire.run() == tmp_path / there / "trees" / "job" / "project"


def test_copying_works_without_copy_file_range(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*arguments: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(agent_files.os, "copy_file_range", cannot)
    monkeypatch.setattr(agent_files, "_SLICE_BYTES", 1000)
    assert snapshot(Wire(build_manifest(str(project)), tmp_path / "cache").run()) == snapshot(project)


def test_shipping_works_without_locks(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*arguments: object) -> int:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(agent_cache.fcntl, "flock", cannot)
    assert snapshot(Wire(build_manifest(str(project)), tmp_path / "cache").run()) == snapshot(project)


# --- all hosts ---------------------------------------------------------------------------------------------------


def test_several_hosts_receive_the_tree(project: Path, tmp_path: Path) -> None:
    async def scenario() -> tuple[dict[str, str], list[tuple[int, int]]]:
        receivers = {f"h{number}": Receiver(os.fsencode(tmp_path / f"h{number}")) for number in range(3)}
        orders: asyncio.Queue[tuple[str, Offer | Piece]] = asyncio.Queue()
        progress: list[tuple[int, int]] = []

        def tell(host: str) -> Callable[[Offer | Piece], None]:
            return lambda message: orders.put_nowait((host, message))

        async def agents() -> None:
            while True:
                host, order = await orders.get()
                said = list(receivers[host].carry_out(order))
                while receivers[host].busy:
                    said += receivers[host].step()
                for message in said:
                    shipping.heard(host, message)  # type: ignore[arg-type]

        hosts = {host: tell(host) for host in receivers}
        shipping = Shipping(
            build_manifest(str(project)), hosts, "job", lambda done, total: progress.append((done, total))
        )
        task = asyncio.create_task(agents())
        directories = await asyncio.wait_for(shipping.send(), 60)
        task.cancel()
        return directories, progress

    directories, progress = asyncio.run(scenario())
    for host, directory in directories.items():
        assert directory == str(tmp_path / host / "trees" / "job" / "project")
        assert snapshot(Path(directory)) == snapshot(project)
    done, total = progress[-1]
    assert done == total == 3 * build_manifest(str(project)).size


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_failure_of_one_host_ends_shipping(how: str, project: Path) -> None:
    async def scenario() -> dict[str, str]:
        shipping = Shipping(build_manifest(str(project)), {"h1": lambda m: None, "h2": lambda m: None}, "job")
        task = asyncio.create_task(shipping.send())
        await asyncio.sleep(0)
        if how == "refused":
            shipping.heard("h2", NotShipped("/x: Permission denied", "do this"))
        else:
            shipping.lost("h2", "it has died")
        shipping.heard("h1", Shipped("/there"))  # Too late to matter.
        return await asyncio.wait_for(task, 60)

    with pytest.raises(SpecError) as caught:
        asyncio.run(scenario())
    if how == "refused":
        assert caught.value.message == "the directory could not be sent: h2: /x: Permission denied"
        assert caught.value.hint == "do this"
    else:
        assert caught.value.message == "the directory could not be sent: h2: it has died"


@pytest.mark.parametrize("broken", ["lost", "watch"])
def test_bug_in_the_watch_over_an_agent_is_told(broken: str, project: Path) -> None:
    class BrokenAgent:
        """An agent about which one question raises a bug's error, after which it has the tree."""

        host, local = Host("h1", 1), False

        def on_file_messages(self, heard: Callable[[FromFiles], None]) -> None:
            self._heard = heard

        def send(self, message: ToFiles) -> None:
            pass

        def pause(self) -> None:
            pass

        async def lost(self) -> None:
            await self._be_asked("lost")

        async def watch(self, seconds: float) -> None:
            await self._be_asked("watch")

        async def _be_asked(self, question: str) -> None:
            if question == broken:
                self._heard(Shipped("/there"))
                raise KeyError("h7")
            await asyncio.Event().wait()

    async def scenario() -> list[str]:
        told: list[str] = []
        with errors_are_told(told.append):
            assert await send.ship(build_manifest(str(project)), [BrokenAgent()], "job") == {"h1": "/there"}  # type: ignore[list-item]
        return told

    (line,) = asyncio.run(scenario())
    assert line.startswith("error: part of the launcher has failed: KeyError: 'h7'")


def test_shipping_to_no_hosts_does_nothing(project: Path) -> None:
    async def scenario() -> dict[str, str]:
        return await Shipping(build_manifest(str(project)), {}, "job").send()

    assert asyncio.run(scenario()) == {}


def test_hosts_share_pieces(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = build_manifest(str(project))
    read = PieceReader(manifest)
    digest = next(file.digest for file in manifest.files.values() if file.path == b"noise.bin")
    assert read(digest, 0) is read(digest, 0)
    monkeypatch.setattr(send, "_REMEMBERED_BYTES", PIECE_BYTES)
    first = read(digest, 0)
    read(digest, PIECE_BYTES)
    assert read(digest, 0) is not first
