"""Prints the facts about this host, as JSON, for a launcher on another one."""

import sys

from farandole.control.agent import cannot_run

try:
    from farandole.base.wire.encoding import encode_json
    from farandole.control.agent.inspect import inspect
except Exception as error:  # Anything may be missing, and an old Python may raise any error.
    cannot_run.exit_with(error)

if __name__ == "__main__":
    sys.stdout.write(encode_json(inspect(try_import="--import" in sys.argv[1:])).decode() + "\n")
