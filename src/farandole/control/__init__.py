"""The control side: starts, watches and shares out jobs. It imports no framework, no numpy and no native library."""
