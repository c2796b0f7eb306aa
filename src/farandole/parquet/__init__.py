"""Rows of Parquet files for distributed training: each exactly once in an epoch, in a world of any size.

Needs `pyarrow`, and `fsspec` for file systems that pyarrow does not have: `pip install 'farandole[parquet]'`.

Example:
    >>> source = ParquetSource("s3://bucket/train", columns=["image", "label"], shuffle=True)  # doctest: +SKIP
    >>> loader = hvd.elastic.ElasticLoader(source, global_batch_size=256)  # doctest: +SKIP
"""

from farandole.base.installed import not_installed

try:
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    raise not_installed("farandole.parquet", error, "parquet") from error

from farandole.parquet.batches import Batches
from farandole.parquet.source import ParquetSource

__all__ = ["Batches", "ParquetSource"]
