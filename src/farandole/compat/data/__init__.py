"""`horovod.data`: data loaders whose batches are read by a thread ahead of time."""

from farandole.compat.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
