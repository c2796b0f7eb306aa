"""Whether only this host has lost its launcher, or the launcher is cut off from most hosts.

Some agents are *witnesses*. An agent whose launcher is silent asks all of them whether they hear it. While most of them
do not, the launcher has no majority, and gives up no host (see `launcher.agents.lease`): the workers go on. Otherwise
this host may be the one that is cut off, and its workers end.

Questions and answers are UDP datagrams, so a witness keeps nothing about who asks. Each is signed with a key of the
job, and an answer repeats the question, which is never asked twice. An answer is as long as its question, and whoever
does not have the key gets none.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from farandole.control.agent.connectivity import resolve
from farandole.control.agent.event_loop import Loop, Timer
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness

ASK_SECONDS = 0.1
"""Time between two questions to a witness."""
_NONCE_BYTES = 16
_PROOF_BYTES = 32  # of SHA-256
_QUESTION = b"farandole: do you hear the launcher?"
_HEARD = b"farandole: I hear the launcher"
_SILENT = b"farandole: I do not hear the launcher"
_LONGEST = 256
_Address = tuple[Any, ...]
# Rounds of questions whose answers may still be on their way.
_ROUNDS = 20
# Rounds in which each witness should answer once.
_TRIAL_ROUNDS = 20


class Witness:
    """Answers whether the launcher is silent here, too.

    Attributes:
        port: the UDP port on which it answers; 0: it cannot listen.

    Args:
        loop: the event loop of the agent.
        hears: returns whether it hears the launcher; see `LauncherConnection.is_steady`.
    """

    def __init__(self, loop: Loop, order: BeWitness, hears: Callable[[], bool]) -> None:
        self._loop = loop
        self._order = order
        self._hears = hears
        self._socket = _listen()
        self.port = 0
        if self._socket is not None:
            self.port = self._socket.getsockname()[1]
            loop.watch(self._socket.fileno(), self._answer)

    def _answer(self) -> None:
        assert self._socket is not None
        for datagram, sender in _received(self._socket):
            question = _proven(datagram, self._order.key, _QUESTION)
            # A host may have an address that other hosts have as well, and their witnesses the same port.
            if question is None or question[_NONCE_BYTES:] != self._order.identity:
                continue
            kind = _HEARD if self._hears() else _SILENT
            _send(self._socket, _signed(question, self._order.key, kind), sender)

    def close(self) -> None:
        """Answer no more."""
        if self._socket is not None:
            self._loop.watch(self._socket.fileno())
            self._socket.close()
            self._socket = None


class Quorum:
    """Asks the witnesses: at first until all have answered once, for two seconds at most; then on demand.

    Args:
        loop: the event loop of the agent.
        order: which agents are the witnesses.
        tried: called after the first questions, with the identities of the witnesses that have answered.
        agreed: called when most of them have said that they do not hear the launcher, with the time at which they were
            asked, on the monotonic clock.
    """

    def __init__(
        self,
        loop: Loop,
        order: AskWitnesses,
        tried: Callable[[Sequence[bytes]], None],
        agreed: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._order = order
        self._tried = tried
        self._agreed = agreed
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._rounds: dict[bytes, tuple[float, set[bytes]]] = {}
        """By nonce: when it was sent, and the witnesses that have answered that they hear nothing."""
        self._answered: set[bytes] = set()
        """Witnesses that have ever answered."""
        self._timer: Timer | None = None
        self._try(_TRIAL_ROUNDS)

    def _try(self, rounds: int) -> None:
        if rounds and len(self._answered) < len(self._order.witnesses):
            self.ask()
            self._timer = self._loop.call_later(ASK_SECONDS, lambda: self._try(rounds - 1))
        else:
            self._timer = None
            self._tried(sorted(self._answered))

    def ask(self) -> None:
        """Send a question to each witness."""
        nonce = os.urandom(_NONCE_BYTES)
        self._rounds[nonce] = time.monotonic(), set()
        if len(self._rounds) > _ROUNDS:
            del self._rounds[next(iter(self._rounds))]
        for witness in self._order.witnesses:
            question = _signed(nonce + witness.identity, self._order.key, _QUESTION)
            for address in witness.addresses:
                self._send(question, address, witness.port)

    def _send(self, question: bytes, address: str, port: int) -> None:
        try:
            family, resolved = resolve(address, port)
            if family not in self._sockets:
                self._sockets[family] = socket.socket(family, socket.SOCK_DGRAM)
                self._sockets[family].setblocking(False)
                self._loop.watch(self._sockets[family].fileno(), lambda: self._receive(self._sockets[family]))
        except OSError:
            return  # This host has no such addresses, or no descriptor is left.
        _send(self._sockets[family], question, resolved)

    def _receive(self, sock: socket.socket) -> None:
        for datagram, _ in _received(sock):
            silent = _proven(datagram, self._order.key, _SILENT)
            answer = _proven(datagram, self._order.key, _HEARD) if silent is None else silent
            if answer is None or answer[:_NONCE_BYTES] not in self._rounds:
                continue
            self._answered.add(answer[_NONCE_BYTES:])
            if silent is not None:
                self._count(answer[:_NONCE_BYTES], answer[_NONCE_BYTES:])

    def _count(self, nonce: bytes, witness: bytes) -> None:
        asked_at, silent = self._rounds[nonce]
        silent.add(witness)
        if len(silent) >= self._order.most:
            del self._rounds[nonce]
            self._agreed(asked_at)

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
        for sock in self._sockets.values():
            self._loop.watch(sock.fileno())
            sock.close()
        self._sockets.clear()


def _listen() -> socket.socket | None:
    """Return a socket that gets what is sent to any address of this host; None: there is none."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            sock = socket.socket(family, socket.SOCK_DGRAM)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((anywhere, 0))
        except OSError:
            sock.close()
            continue
        sock.setblocking(False)
        return sock
    return None


def _received(sock: socket.socket) -> Sequence[tuple[bytes, _Address]]:
    """Return the datagrams that have arrived, with their senders; not all if there are many."""
    received = []
    for _ in range(_ROUNDS):
        try:
            received.append(sock.recvfrom(_LONGEST))
        except BlockingIOError:
            break
        except OSError as error:
            # What was sent to a port on which nobody listens is reported here.
            if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH):
                break
    return received


def _send(sock: socket.socket, datagram: bytes, where: _Address) -> None:
    try:
        sock.sendto(datagram, where)
    except OSError:
        pass  # The network is down, or its queue is full: it is asked again.


def _signed(content: bytes, key: bytes, kind: bytes) -> bytes:
    return content + _proof(content, key, kind)


def _proven(datagram: bytes, key: bytes, kind: bytes) -> bytes | None:
    """Return the content of a datagram; None if it was not signed with the key, as this kind."""
    import hmac  # It loads OpenSSL, which few agents need.

    content, proof = datagram[:-_PROOF_BYTES], datagram[-_PROOF_BYTES:]
    return content if hmac.compare_digest(proof, _proof(content, key, kind)) else None


def _proof(content: bytes, key: bytes, kind: bytes) -> bytes:
    import hmac

    return hmac.digest(key, kind + content, "sha256")
