"""What the worker side and the control side share: messages, settings, metrics, and the formats of files."""
