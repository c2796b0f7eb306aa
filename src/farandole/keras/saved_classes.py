"""The names under which Keras saves distributed optimizers: those of the wrapped ones, so that any Keras loads them."""

from __future__ import annotations

from keras.src import api_export
from keras.src.saving import object_registration


def save_as(cls: type, original: type) -> None:
    """Make Keras save instances of a class as instances of another one."""
    exported = api_export.REGISTERED_OBJS_TO_NAMES
    public = original
    if original.__module__.startswith("keras."):
        # A backend may have own classes below the public ones: files with public names can be read everywhere.
        public = next((each for each in original.__mro__ if each in exported), original)
    if public in exported:
        exported[cls] = exported[public]
    object_registration.GLOBAL_CUSTOM_NAMES[cls] = object_registration.get_registered_name(original)
