"""The events that can happen to a job. One file for each says how it is caused, and how its results are shown."""

from __future__ import annotations

from benchmarks.elastic.events.base import Event
from benchmarks.elastic.events.daemon import ATTACH, DAEMON
from benchmarks.elastic.events.idle import IDLE
from benchmarks.elastic.events.join import JOIN
from benchmarks.elastic.events.kill import KILL, KILL_LARGE
from benchmarks.elastic.events.launcher import LAUNCHER
from benchmarks.elastic.events.stop import STOP

EVENTS: tuple[Event, ...] = (KILL, KILL_LARGE, STOP, JOIN, LAUNCHER, DAEMON, ATTACH, IDLE)
