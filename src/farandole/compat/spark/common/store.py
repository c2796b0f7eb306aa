"""`horovod.spark.common.store`."""

from farandole.spark.store import FilesystemStore, HDFSStore, LocalStore, Store

# On Databricks, its file system is mounted on every node.
DBFSLocalStore = FilesystemStore

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]
