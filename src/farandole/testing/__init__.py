"""Worlds of workers for the tests of training scripts: `world`."""

from farandole.testing.workers import World, world

__all__ = ["World", "world"]
