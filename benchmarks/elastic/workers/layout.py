"""Names and formats of the files that a job's workers and the measurement share. Needs no framework."""

from __future__ import annotations

import struct

GATE = "gate"
GATE_RECORD = struct.Struct("<q")
"""Steps with a number below this one may happen."""

BALLAST = "ballast"
"""Locked by the worker that holds the touched memory, and says which process that is."""
