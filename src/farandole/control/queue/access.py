"""Who asks: by what the kernel says of the process at the other end of a Unix socket, or by a token.

Tokens are for processes that the kernel knows under another user's name: in containers, or behind a forwarded socket.
The database has only their digests.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets

from farandole.control.jobs.errors import NotAllowed, Refused
from farandole.control.queue.model import Owner
from farandole.control.queue.requests import Asker
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.store import Store


class Access:
    """Knows the users of a queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def asker(self, uid: int, token: str, settings: QueueSettings) -> Asker:
        """Return who asks.

        Args:
            uid: of the process at the other end.
            token: what it shows; "": nothing.
            settings: of the queue, which name administrators.

        Raises:
            NotAllowed: the token is nobody's.
        """
        if token:
            name = self._store.user_of(digest(token))
            if name is None:
                raise NotAllowed("the token is unknown", "an administrator makes one: farandole queue token USER")
            owner = owner_named(name)
        else:
            owner = owner_of(uid)
        is_admin = owner.uid in (0, os.geteuid()) or owner.name in settings.admins
        return Asker(owner, is_admin)

    def make_token(self, user: str) -> str:
        """Return a new token for a user.

        Raises:
            Refused: this machine knows no such user.
        """
        owner_named(user)
        token = secrets.token_urlsafe(32)
        self._store.add_token(digest(token), user)
        return token

    def revoke(self, user: str) -> int:
        """Take all tokens of a user back; return how many there were."""
        return self._store.remove_tokens(user)


def check_can_run(owner: Owner) -> None:
    """See whether this process can start something as a user.

    Raises:
        NotAllowed: it cannot.
    """
    if os.geteuid() not in (0, owner.uid):
        mine = owner_of(os.geteuid()).name
        raise NotAllowed(
            f"this queue runs as {mine}, and can run jobs of {mine} only",
            "have root run one for all: farandole queue start",
        )


def digest(token: str) -> str:
    # Tokens are random and long: a plain hash cannot be guessed backwards.
    return hashlib.sha256(token.encode()).hexdigest()


def owner_of(uid: int) -> Owner:
    """Return a user by number; one whom this machine does not know by name has the number for a name."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Owner(uid, uid, str(uid))
    return Owner(uid, entry.pw_gid, entry.pw_name)


def owner_named(name: str) -> Owner:
    """Return a user by name.

    Raises:
        Refused: this machine knows no such user.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise Refused(f"there is no user {name} on this machine", "check the name: getent passwd") from None
    return Owner(entry.pw_uid, entry.pw_gid, entry.pw_name)
