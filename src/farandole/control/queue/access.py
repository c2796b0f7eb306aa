"""Identifies the user behind a request: by the kernel's credentials of the Unix socket's peer, or by a token.

Tokens are for processes whose user the kernel knows by another name: in containers, or behind a forwarded socket.
The database contains only their digests.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets

from farandole.control.jobs.errors import NotAllowed, Refused
from farandole.control.queue.model import Owner
from farandole.control.queue.requests import Requester
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.store import QueueStore


class Access:
    """Identifies the users of a queue."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def identify(self, uid: int, token: str, settings: QueueSettings) -> Requester:
        """Return the user behind a request, and whether that user is an administrator.

        Args:
            uid: the user id of the process at the other end of the socket.
            token: the token that the request carries; "" for none.
            settings: the settings of the queue, which name its administrators.

        Raises:
            NotAllowed: the token is unknown.
        """
        if token:
            name = self._store.user_of(digest(token))
            if name is None:
                raise NotAllowed("the token is unknown", "ask an administrator for one: farandole queue token USER")
            owner = owner_named(name)
        else:
            owner = owner_of(uid)
        is_admin = owner.uid in (0, os.geteuid()) or owner.name in settings.admins
        return Requester(owner, is_admin)

    def make_token(self, user: str) -> str:
        """Return a new token for a user.

        Raises:
            Refused: this machine has no such user.
        """
        owner_named(user)
        token = secrets.token_urlsafe(32)
        self._store.add_token(digest(token), user)
        return token

    def revoke(self, user: str) -> int:
        """Revoke all tokens of a user; return how many there were."""
        return self._store.remove_tokens(user)


def check_can_run(owner: Owner) -> None:
    """Check that this process can start processes as a user.

    Raises:
        NotAllowed: it cannot.
    """
    if os.geteuid() not in (0, owner.uid):
        mine = owner_of(os.geteuid()).name
        raise NotAllowed(
            f"this queue runs as {mine}, and can run jobs of {mine} only",
            "have root run one queue for all users: farandole queue start",
        )


def digest(token: str) -> str:
    # Tokens are random and long: a plain hash of one cannot be reversed.
    return hashlib.sha256(token.encode()).hexdigest()


def owner_of(uid: int) -> Owner:
    """Return a user by number; a user without a name on this machine has the number as name."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid, uid, str(uid))
    return Owner(uid, entry.pw_gid, entry.pw_name)


def owner_named(name: str) -> Owner:
    """Return a user by name.

    Raises:
        Refused: this machine has no such user.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise Refused(f"there is no user {name} on this machine", "check the name: getent passwd") from None
    return Owner(entry.pw_uid, entry.pw_gid, entry.pw_name)
