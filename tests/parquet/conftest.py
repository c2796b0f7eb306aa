"""What holds for all tests of Parquet: they need an environment of their own (`make test-parquet`)."""

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed; run `make test-parquet`")
