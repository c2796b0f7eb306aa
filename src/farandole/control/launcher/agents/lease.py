"""Whether a launcher hears most witnesses: only then may it give up hosts that are silent.

An agent that does not hear its launcher ends its workers in time, and the launcher relies on that. If the job has
witnesses, it keeps them as long as most witnesses say that they do not hear the launcher either (see `agent.quorum`).
So the launcher must know that no majority can have said so:

- A witness confirms each heartbeat at once. For `LEASE_PART` of the host timeout after the launcher has *sent* a
  heartbeat, it has the witness's vote.
- A witness says that the launcher is silent `SILENCE_PART` of the host timeout after it has *received* the last one,
  which is later. When it hears the launcher again, it goes on to say so for a while, and confirms nothing meanwhile.

Any two majorities have a witness in common, so while the launcher holds most votes, no agent gets an excuse. One that
it got before lasts for the host timeout. So a host is given up when it has been silent, and the majority has been held,
for all of that time.

A witness is replaced only when its agent has certainly ended. So the witnesses that can answer an agent that has not
heard of this yet are all witnesses still, and most of them have one in common with each majority of today.

Nothing here does I/O; times are on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable

LEASE_PART = 0.55
SILENCE_PART = 0.6
# The launcher is as sure as without witnesses when agents must have ended their workers in spite of any excuse.
SPARE_SECONDS = 5.0


class Lease:
    """The votes of the witnesses for one launcher.

    Args:
        witnesses: their names; an odd number.
        seconds: how long a vote is valid.
        limit: seconds of silence after which agents end their workers, whatever the witnesses say.
        now: the present.
    """

    def __init__(self, witnesses: Iterable[str], seconds: float, limit: float, now: float) -> None:
        self._ends = dict.fromkeys(witnesses, now)
        self._seconds = seconds
        self._limit = limit
        self._since = now

    @property
    def ends_at(self) -> float:
        """When the majority ends, or has ended."""
        return sorted(self._ends.values())[len(self._ends) // 2]

    def confirm(self, witness: str, sent_at: float, now: float) -> None:
        """Count a vote: the witness has just confirmed a heartbeat that was sent then."""
        if witness in self._ends:
            was_held = now < self.ends_at
            self._ends[witness] = max(self._ends[witness], sent_at + self._seconds)
            if not was_held:
                self._since = now

    def replace(self, witness: str, other: str, now: float) -> None:
        """Let another witness take the place of one whose agent has ended."""
        self._ends[other] = min(self._ends.pop(witness), now)  # It has not voted yet.

    def held_for(self, now: float) -> float:
        """Return for how many seconds it has held the majority without interruption; 0: it does not hold it.

        Once all agents must have ended their workers in any case, this is the time since then.
        """
        if now < self.ends_at:
            return now - self._since
        return max(0.0, now - self.ends_at - self._limit - SPARE_SECONDS)
