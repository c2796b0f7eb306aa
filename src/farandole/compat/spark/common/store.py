"""`horovod.spark.common.store`."""

from farandole.spark.store import FilesystemStore, HDFSStore, LocalStore, Store

__all__ = ["FilesystemStore", "HDFSStore", "LocalStore", "Store"]
