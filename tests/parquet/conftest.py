"""Tests of Parquet need an environment of their own: `make test-parquet`."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("pyarrow") else ["test_*.py"]
