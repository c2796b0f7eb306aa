"""Code that the worker side and the control side share: messages, settings, metrics, and file formats."""
