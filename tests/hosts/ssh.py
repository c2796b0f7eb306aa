"""Keys for one bed, and the files of sshd and ssh: configuration, identity, known hosts.

All of them are in the hosts' own memory file systems and disappear with these.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONFIG = "/root/.ssh/config"
LOG = "/run/bed/sshd.log"
SSHD = "/usr/sbin/sshd"
# What a test that runs without an installed farandole needs in every session. PATH is left as bare as sshd makes it.
FORWARDED = ("PYTHONPATH", "FARANDOLE_LIBRARY")

_SSHD_CONFIG = "/run/bed/sshd_config"
_HOST_KEY = "/run/bed/ssh_host_ed25519_key"
_CLIENT_SETTINGS = """\
GSSAPIAuthentication no
"""
_SERVER_SETTINGS = f"""\
HostKey {_HOST_KEY}
PidFile /run/bed/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 200
MaxSessions 100
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Key:
    """An ed25519 key: the text of its private file, and of its public one without the comment."""

    private: str
    public: str


def make_keys(count: int) -> list[Key]:
    """Create keys, without leaving files behind."""
    keys = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            path = Path(folder, str(number))
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
            keys.append(Key(path.read_text(), path.with_suffix(".pub").read_text().strip()))
    return keys


def client_files(identity: Key, known: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, int]]:
    """Return the files of `ssh` by path, as text and mode; `known` has names and addresses by public host key."""
    known_hosts = "".join(f"{','.join(names)} {key}\n" for key, names in known.items())
    return {
        CONFIG: (_CLIENT_SETTINGS, 0o600),
        "/root/.ssh/id_ed25519": (identity.private, 0o600),
        "/root/.ssh/known_hosts": (known_hosts, 0o600),
    }


def server_files(identity: Key, host_key: Key, environment: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return the files of `sshd` by path, as text and mode; sessions get the environment."""
    settings = _SERVER_SETTINGS
    if environment:
        settings += "SetEnv " + " ".join(f'"{name}={value}"' for name, value in environment.items()) + "\n"
    return {
        _SSHD_CONFIG: (settings, 0o600),
        _HOST_KEY: (host_key.private, 0o600),
        "/root/.ssh/authorized_keys": (identity.public + "\n", 0o600),
        # Where sshd confines the part of itself that speaks with strangers.
        "/run/sshd/.keep": ("", 0o600),
    }


def server_command() -> list[str]:
    """Return the command that starts sshd in the background; it returns when sshd listens."""
    return [SSHD, "-f", _SSHD_CONFIG, "-E", LOG]
