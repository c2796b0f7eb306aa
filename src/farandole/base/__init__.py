"""The part that the worker side and the control side share: messages, settings, metrics, and formats of files."""
