"""Prints what this host is like, as JSON, for a launcher on another one."""

import sys

import msgspec

from farandole.agent.inspect import inspect

if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(inspect(try_import="--import" in sys.argv[1:])).decode() + "\n")
