"""`python -m farandole.control.agent.dial`: offers this host, and then its agent, to a launcher that cannot reach it.

It dials the launcher, both sides prove that they have the secret of the job, and from then on bytes are passed
between the launcher and an agent that is started here. This is the reverse of an ssh connection: this host needs no
server, and the launcher needs no permission to start processes on it. In a pod this is process 1.

- When the connection ends, the agent waits for another launcher, if it was allowed to (see `failover`), and its workers
    continue. This process dials again, until a launcher decides about them.
- A launcher that considers this host lost orders it to end its agent and workers. The host is offered again only after
    that, so its report that it has no living agent is reliable.
- When the agent ends, this process ends as well, with code 0 if the agent's was 0.
- SIGTERM is passed on: an agent of an elastic job leaves gracefully.
- As the child of another program's process (see `dialer_process`), it ends with that process, as does its agent.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from farandole.base.display.standard_output import log_line
from farandole.base.installed import own_version
from farandole.base.wire.channel import Channel
from farandole.base.wire.dialing import (
    KEEPALIVE_SECONDS,
    MOST_SLOTS,
    Bridged,
    Continue,
    Hello,
    Leave,
    Order,
    Surroundings,
)
from farandole.base.wire.errors import AuthenticationFailed, WireError
from farandole.base.wire.frames import Codec
from farandole.base.wire.host_identity import here
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.control.agent.take_over import find_agent

REST_SECONDS = 0.5
# Seconds that authentication may take on a busy machine.
PROOF_SECONDS = 5.0
# Seconds that an agent has to end when asked to; it gives its workers 5 s of these.
LEAVE_SECONDS = 10.0
_CHUNK = 1 << 16
_FRAME_LIMIT = 1 << 16


class Dialer:
    """Dials until it is no longer needed.

    Args:
        launcher: host:port of the launcher.
        read_secret: returns the secret to prove; called each time, because a mounted file may appear late.
        name: the name of this host shown to people.
        slots: number of workers that fit.
        patience: seconds for which to look for a launcher while this host has no agent.
        devices: the GPUs that workers may use; (): all, or none.
        own: the surroundings in which workers run here; None: the launcher determines them.
    """

    def __init__(
        self,
        launcher: str,
        read_secret: Callable[[], bytes],
        name: str,
        slots: int,
        patience: float,
        devices: tuple[str, ...] = (),
        own: Surroundings | None = None,
    ) -> None:
        self._launcher = launcher
        self._read_secret = read_secret
        self._patience = patience
        self._hello = Hello(name, slots, own_version(), False, secrets.token_hex(8), here()[0], devices, own)
        self._told = ""
        self._agent: subprocess.Popen[bytes] | None = None
        self._pipes: tuple[int, int] | None = None
        """The pipes to and from the agent, while they are open."""
        self._leaving = False

    def run(self) -> int:
        """Dial, and connect an agent to the launcher; return the exit code for this process."""
        signal.signal(signal.SIGTERM, self._asked_to_go)
        looking_since = time.monotonic()
        while True:
            if self._agent is not None and self._agent.poll() is not None:
                return self._end_of_agent()
            if self._agent is None and (self._leaving or time.monotonic() - looking_since > self._patience):
                return 0 if self._leaving else self._give_up()
            try:
                if self._serve(self._dial()):
                    looking_since, self._told = time.monotonic(), ""
            except (OSError, WireError) as error:
                self._tell(str(error), f"looking for the launcher at {self._launcher}: {error}")
            time.sleep(REST_SECONDS)

    def _dial(self) -> Channel:
        channel = Channel.connect(self._launcher, self._read_secret(), timeout=PROOF_SECONDS, limit=_FRAME_LIMIT)
        hello = msgspec.structs.replace(self._hello, lives=self._agent is not None)
        channel.send(Codec[Hello](Hello).encode(hello))
        return channel

    def _serve(self, channel: Channel) -> bool:
        """Wait for the launcher's orders and carry them out until the connection ends.

        Returns:
            Whether the launcher needed this host.
        """
        try:
            # The kernel ends the wait when the launcher's machine is gone.
            channel.watch_over(KEEPALIVE_SECONDS)
            order = Codec[Order](Order).decode(channel.receive())
            if isinstance(order, Leave):
                self._tell(order.why, f"the launcher continues without this host: {order.why}")
                self._end_agent()
                return False
            elif isinstance(order, Continue):
                self._continue(channel, order)
            elif self._agent is None:
                self._begin(channel)
            else:
                self._end_agent()  # It does not know the agent.
            return True
        finally:
            channel.close()

    def _begin(self, channel: Channel) -> None:
        if self._leaving:
            return
        self._agent = subprocess.Popen(
            # In / there are no files that Python could mistake for modules.
            [sys.executable, "-m", "farandole.control.agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )  # fmt: skip
        assert self._agent.stdin is not None and self._agent.stdout is not None
        self._pipes = os.dup(self._agent.stdin.fileno()), os.dup(self._agent.stdout.fileno())
        self._agent.stdin.close()
        self._agent.stdout.close()
        if self._leaving:
            self._asked_to_go()  # It arrived in the meantime.
        channel.send(_bridged(True))
        try:
            pass_on(channel.release(), *self._pipes)
        finally:
            self._close_pipes()

    def _continue(self, channel: Channel, order: Continue) -> None:
        agent = find_agent(list(order.sockets)) if self._agent is not None else None
        channel.send(_bridged(agent is not None))
        if agent is None:
            self._end_agent()
            return
        with agent:
            pass_on(channel.release(), agent.fileno(), agent.fileno())

    def _close_pipes(self) -> None:
        if self._pipes is not None:
            for pipe in self._pipes:
                os.close(pipe)
            self._pipes = None

    # --- ending -------------------------------------------------------------------------------------------------

    def _asked_to_go(self, *_: object) -> None:
        self._leaving = True
        if self._agent is None:
            os._exit(0)  # Nothing is running here.
        if self._agent.returncode is None:
            self._agent.terminate()

    def _end_agent(self) -> None:
        """End the agent and everything that it started; return when that is certain."""
        agent = self._agent
        if agent is None:
            return
        agent.terminate()  # An agent without a launcher ends its workers, and then itself.
        try:
            agent.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        if os.getpid() == 1:
            _kill_the_rest()
        self._agent = None

    def _end_of_agent(self) -> int:
        assert self._agent is not None
        code = self._agent.returncode
        if code and not self._leaving:
            _say(f"the agent of the workers exited with code {code}")
        return 1 if code else 0

    def _give_up(self) -> int:
        last = self._told or "none has needed this host"
        _say(f"no launcher at {self._launcher} for {self._patience:g} s: {last}")
        return 1

    def _tell(self, what: str, text: str) -> None:
        if what != self._told:
            self._told = what
            _say(text)

    def end_with(self, parent: int) -> None:
        """End at once, with the agent and its workers, when a pipe from the parent process is closed.

        Args:
            parent: the reading end of a pipe whose other end only the parent process has.
        """
        while os.read(parent, _CHUNK):
            pass
        if self._agent is not None and self._agent.returncode is None:
            self._agent.terminate()  # It must not wait for another launcher.
        os._exit(1)  # This also ends the agent's standard input.


def _kill_the_rest() -> None:
    """Kill all other processes of this PID namespace, in which this is process 1, and reap them."""
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _bridged(found: bool) -> bytes:
    return Codec[Bridged](Bridged).encode(Bridged(found))


def _say(text: str) -> None:
    log_line(f"farandole: {text}")


def pass_on(sock: socket.socket, down: int, up: int) -> None:
    """Pass bytes between a socket and two descriptors, and return when either side has ended.

    Args:
        sock: the socket to the launcher; it is shut down at the end.
        down: the descriptor for data from the launcher.
        up: the descriptor with data for the launcher.
    """
    passing = threading.Thread(target=_pass_up, args=(sock, up), daemon=True)
    passing.start()
    try:
        while data := sock.recv(_CHUNK):
            view = memoryview(data)
            while view:
                view = view[os.write(down, view) :]
    except OSError:
        pass
    _shut_down(sock)
    _shut_down_descriptor(up)
    passing.join(REST_SECONDS)


def _pass_up(sock: socket.socket, up: int) -> None:
    try:
        while data := os.read(up, _CHUNK):
            sock.sendall(data)
    except OSError:
        pass
    # Data already sent still arrives; then the other thread's wait ends too.
    _shut_down(sock)


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has already been shut down.


def _shut_down_descriptor(descriptor: int) -> None:
    """Make a blocked read from a socket return; a read from a pipe returns when the agent answers."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def main() -> None:
    """Offer this host to the launcher given by the arguments."""
    ensure_utf8()
    parser = argparse.ArgumentParser(
        prog="python -m farandole.control.agent.dial", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--launcher", required=True, metavar="HOST:PORT")
    secret = parser.add_mutually_exclusive_group(required=True)
    secret.add_argument("--secret-file", metavar="FILE", type=Path)
    secret.add_argument(
        "--child",
        action="store_true",
        help="read the secret from the first line of standard input, in hexadecimal, and end when that ends; let "
        "workers run in this directory, with this Python",
    )
    parser.add_argument("--name", default=socket.gethostname(), help="name of this host in messages")
    parser.add_argument("--slots", default=1, type=int, help="number of workers that fit (default: 1)")
    parser.add_argument(
        "--patience",
        default=600.0,
        type=float,
        metavar="S",
        help="seconds to look for a launcher (default: %(default)g)",
    )
    parser.add_argument("--devices", default="", metavar="D,...", help="GPUs that workers may use (default: all)")
    options = parser.parse_args()
    if not 1 <= options.slots <= MOST_SLOTS:
        parser.error(f"--slots: use a number from 1 to {MOST_SLOTS}")

    devices = tuple(filter(None, options.devices.split(",")))
    if options.child:
        sys.exit(_run_as_child(options, devices))

    def read_secret() -> bytes:
        secret = options.secret_file.read_bytes().strip()
        if not secret:
            raise AuthenticationFailed(f"the secret file {options.secret_file} is empty")
        return bytes(secret)

    sys.exit(Dialer(options.launcher, read_secret, options.name, options.slots, options.patience, devices).run())


def _run_as_child(options: argparse.Namespace, devices: tuple[str, ...]) -> int:
    secret = bytes.fromhex(sys.stdin.readline())
    if not secret:
        return 1  # The parent has ended already.
    own = Surroundings(os.getcwd(), sys.executable, f"{sys.version_info.major}.{sys.version_info.minor}")
    dialer = Dialer(options.launcher, lambda: secret, options.name, options.slots, options.patience, devices, own)
    # A pipe, unlike PR_SET_PDEATHSIG, does not end with the thread that has started this process.
    threading.Thread(target=dialer.end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    return dialer.run()


if __name__ == "__main__":
    main()
