"""Looks, when `horovod` is imported, whether PyPI's horovod has been installed over ours.

Runs whenever Python starts, so it imports nothing before it is needed.
"""

import sys


class Guard:
    """Finds nothing; only looks."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Refuse `horovod` when PyPI's is there too."""
        if name == "horovod":
            from farandole.compat import conflict

            conflict.check()


sys.meta_path.insert(0, Guard)
