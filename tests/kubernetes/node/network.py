"""The network of a node's pods: a wire from each of them to the bridge that all nodes share.

The bridge is in a namespace of its own, which the owner of the cluster holds. Sockets that this process opens there
stay there, so probes reach pods, and pods reach what listens for them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from tests.hosts.namespaces import in_network

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")
MOST_PODS = 250


class PodNetwork:
    """Addresses and wires of one node.

    Args:
        bridge: a process in the namespace of the bridge.
        node: the number of the node; its pods are 10.78.NODE.x.
    """

    def __init__(self, bridge: int, node: int) -> None:
        self._bridge = bridge
        self._node = node
        # A freed address is used again last: somebody may still know it.
        self._free = list(range(2, 2 + MOST_PODS))
        self._address = f"10.78.0.{10 + node}"
        in_network(bridge, ["ip", "address", "replace", f"{self._address}/16", "dev", "pods"])

    @property
    def address(self) -> str:
        """The node's own, which pods reach."""
        return self._address

    def connect(self, process: int) -> str:
        """Lay the wire of a pod, and return its address.

        Args:
            process: in the pod's network namespace.
        """
        number = self._free.pop(0)
        address, port = f"10.78.{self._node}.{number}", f"n{self._node}p{number}"
        lines = [
            f"link add name {port} type veth peer name eth0 netns {process}",
            f"link set dev {port} master pods up",
        ]
        # A node that was lost may have left this end of a wire, for as long as the kernel takes the other end apart.
        in_network(self._bridge, ["sh", "-c", f"ip link delete {port} 2>/dev/null || true"])
        in_network(self._bridge, ["ip", "-batch", "-"], lines)
        inside = ["link set dev lo up", f"address add {address}/16 dev eth0", "link set dev eth0 up"]
        in_network(process, ["ip", "-batch", "-"], inside)
        return address

    def release(self, address: str) -> None:
        """Give an address back; the wire has ended with the namespace."""
        self._free.append(int(address.rpartition(".")[2]))

    def inside(self, make: Callable[[], T]) -> T:
        """Return what a function returns that runs in the bridge's namespace; sockets that it makes stay there."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with open(f"/proc/{self._bridge}/ns/net", "rb") as namespace:
                    if _libc.setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                results.append(make())
            except BaseException as error:
                errors.append(error)

        # A thread of its own: a namespace belongs to a thread, and this one ends with it.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens at the node's address."""
        return self.inside(lambda: socket.create_server((self._address, port), backlog=256))

    def can_connect(self, address: str, port: int, seconds: float) -> bool:
        """Return whether a pod accepts connections there. Waits; call it in a thread."""
        try:
            self.inside(lambda: socket.create_connection((address, port), seconds)).close()
        except OSError:
            return False
        return True

    def http_status(self, address: str, port: int, path: str, seconds: float) -> int:
        """Return the status that a pod answers with; 0: none. Waits; call it in a thread."""
        try:
            with self.inside(lambda: socket.create_connection((address, port), seconds)) as connection:
                connection.settimeout(seconds)
                connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                words = connection.recv(64).split()
                return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        except OSError:
            return 0
