"""The program that the workers of `farandole.run` run: fetches the call, makes it, and sends back its result."""

from __future__ import annotations

import os
import pickle
import sys
import traceback

from farandole.base.external_launcher import find
from farandole.base.wire.frames import LARGEST_FRAME
from farandole.base.wire.roster_client import RosterClient
from farandole.errors import lost_rank_behind


def main() -> None:
    """Fetch and make one call.

    Raises:
        Exception: the function's exception, after it was sent back.
    """
    client = RosterClient.connect(
        os.environ["FARANDOLE_ROSTER"],
        bytes.fromhex(os.environ["FARANDOLE_SECRET"]),
        worker=_worker(),
        frame_limit=LARGEST_FRAME,
    )
    with client:
        # The roster has proven that it is the launcher's, so its data may be unpickled. The path comes first:
        # unpickling the rest may import modules from it.
        path, call = pickle.loads(client.fetch_call())
        # On another machine, packages may be in other places.
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
        from farandole.base import portable

        try:
            function, args, kwargs = pickle.loads(call)
            client.send_result(portable.dump_result(function(*args, **kwargs)))
        except Exception as error:
            client.report_failure(traceback_of(error), _one_line(error), lost_rank_behind(error))
            # One that cannot be pickled is None: its text has been reported.
            client.send_result(portable.dump_exception(error))
            # Python prints it, and the engine's hook, if there is an engine, informs the other workers.
            raise


def _worker() -> int:
    """Return this worker's number, from the variables of our own launcher or of another program that started it."""
    place = find(os.environ)
    if place is None:
        raise RuntimeError("no launcher has started this process: no known variable gives its rank")
    return place.rank


def traceback_of(error: BaseException) -> str:
    """Return the text of a traceback without its first frame, which belongs to this module, not to the user."""
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return "".join(traceback.format_exception(type(error), error, frames))


def _one_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()


if __name__ == "__main__":
    main()
