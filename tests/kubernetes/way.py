"""A way to the API server on which connections can be cut, as load balancers and firewalls do."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK = 1 << 16


class Way:
    """Passes connections on to the API server, in threads, while the context is open.

    Attributes:
        url: where it listens; the server's certificate is good for it.

    Args:
        url: of the API server, which listens on this machine.
    """

    def __init__(self, url: str) -> None:
        self._server = "127.0.0.1", int(url.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def __enter__(self) -> Way:
        """Begin to listen."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more, and end all connections."""
        # `close` alone does not wake the thread that waits there.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> int:
        """End all connections at once, and return how many there were. New ones are passed on."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in (each for pair in pairs for each in pair):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # The context is left.
            try:
                far = socket.create_connection(self._server)
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            with self._lock:
                self._pairs.append((near, far))
            back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
            back.start()
            _pass_on(near, far)
            back.join()
            with self._lock:
                self._pairs = [pair for pair in self._pairs if near not in pair]


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_CHUNK):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
