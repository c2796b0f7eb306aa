"""Stores: the places of estimators' data, checkpoints and logs, on any file system that fsspec supports.

Below the prefix are `intermediate_train_data`, `intermediate_val_data` and `intermediate_test_data`, with a number
after a dot if there are several, and `runs/RUN_ID` with the checkpoint of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from farandole.errors import InvalidRequestError

# `fsspec` takes some of these for patterns that match names of other folders.
_NOT_IN_NAMES = re.compile(r"[/\0*?\[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def is_name(given: Any) -> bool:
    """Return whether a value can be the name of a folder or file within another folder."""
    return isinstance(given, str) and given not in ("", ".", "..") and not _NOT_IN_NAMES.search(given)


def _text_of(path: Any) -> str:
    """Return a path as text, without a slash at its end.

    Raises:
        InvalidRequestError: it is not the path of a folder.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip("/"):
        raise InvalidRequestError(
            f"{path!r:.80} is not a folder for a Store: give a path, or a URL such as s3://bucket/folder."
        )
    return text.rstrip("/")


class Store:
    """The place of an estimator's data and runs.

    Args:
        prefix_path: a folder that the driver and all executors can access: a path, or a URL such as s3://bucket/folder;
            on Databricks also dbfs:/folder.
        train_path: the training data; None: below the prefix.
        val_path: the validation data; None: below the prefix.
        test_path: the test data; None: below the prefix.
        runs_path: the runs; None: below the prefix.
        save_runs: whether checkpoints are kept after the training.
        storage_options: arguments of fsspec's file system.
        checkpoint_filename: the name of a checkpoint in the folder of its run.

    Raises:
        InvalidRequestError: a path or an argument is not valid.

    Example:
        >>> Store.create("/shared/store").get_checkpoint_path("run7")
        'file:///shared/store/runs/run7/checkpoint'
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str = "checkpoint",
    ) -> None:
        if not isinstance(storage_options, Mapping | None):
            # It may contain secrets.
            raise InvalidRequestError(f"storage_options is a {type(storage_options).__name__}, not a dict.")
        if not is_name(checkpoint_filename):
            raise InvalidRequestError(f"checkpoint_filename={checkpoint_filename!r:.80} is not the name of a file.")
        self.prefix_path = self._url(prefix_path)
        self._data = {
            kind: self._url(path) if path else f"{self.prefix_path}/intermediate_{kind}_data"
            for kind, path in (("train", train_path), ("val", val_path), ("test", test_path))
        }
        self._runs = self._url(runs_path) if runs_path else f"{self.prefix_path}/runs"
        self._save_runs = save_runs
        self._storage_options = dict(storage_options or {})
        self._checkpoint_filename = checkpoint_filename

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Return the store for a prefix: an `HDFSStore` for hdfs://, otherwise a `FilesystemStore`."""
        kind = HDFSStore if str(prefix_path).startswith("hdfs://") else FilesystemStore
        return kind(prefix_path, *args, **kwargs)

    def _url(self, path: str) -> str:
        path = _text_of(path)
        if path.startswith("dbfs:/"):
            # Databricks mounts its file system there on every node.
            path = f"/dbfs/{path.removeprefix('dbfs:').lstrip('/')}"
        elif _SCHEME.match(path) and "://" not in path and not path.startswith("file:"):
            raise InvalidRequestError(
                f"{path} is not a URL. Write two slashes after the colon, such as s3://bucket/folder, or a path."
            )
        return path if "://" in path else f"file://{os.path.abspath(path.removeprefix('file:'))}"

    # --- paths -----------------------------------------------------------------------------------------------------

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the URL of the training data; `idx`: the number of the data set, if there are several."""
        return self._numbered("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the URL of the validation data."""
        return self._numbered("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the URL of the test data."""
        return self._numbered("test", idx)

    def _numbered(self, kind: str, idx: int | None) -> str:
        return self._data[kind] if idx is None else f"{self._data[kind]}.{idx}"

    def saving_runs(self) -> bool:
        """Return whether checkpoints are kept after the training."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """Return the URL of the folder of all runs."""
        return self._runs

    def get_run_path(self, run_id: str) -> str:
        """Return the URL of the folder of a run.

        Raises:
            InvalidRequestError: `run_id` is not the name of a folder.
        """
        if not is_name(run_id):
            # The folder is removed after the training if runs are not saved.
            raise InvalidRequestError(f"run_id={run_id!r:.80} is not a name: give text without /, *, ? or [.")
        return f"{self._runs}/{run_id}"

    def get_checkpoint_filename(self) -> str:
        """Return the name of a checkpoint in the folder of its run."""
        return self._checkpoint_filename

    def get_checkpoint_path(self, run_id: str) -> str:
        """Return the URL of a run's checkpoint."""
        return f"{self.get_run_path(run_id)}/{self._checkpoint_filename}"

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Return the URLs of the files with a suffix in the folder of a run, sorted."""
        fs, path = self._fs_of(self.get_run_path(run_id))
        found = fs.ls(path, detail=False) if fs.exists(path) else []
        return sorted(fs.unstrip_protocol(each) for each in found if each.endswith(suffix))

    def get_logs_subdir(self) -> str:
        """Return the name of the folder for logs in the folder of a run."""
        return "logs"

    def get_logs_path(self, run_id: str) -> str:
        """Return the URL of the folder for the logs of a run."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}"

    # --- files -----------------------------------------------------------------------------------------------------

    @property
    def fs(self) -> Any:
        """fsspec's file system of the store."""
        return self._fs_of(self.prefix_path)[0]

    def _fs_of(self, url: str) -> tuple[Any, str]:
        """Return fsspec's file system for a URL, and the path within it."""
        try:
            import fsspec

            system, path = fsspec.core.url_to_fs(url, **self._storage_options)
        except (ImportError, ValueError) as error:
            raise InvalidRequestError(
                f"there is no file system for {url}: {error}. Install the package of fsspec for it, such as s3fs, "
                "gcsfs or adlfs, on the driver and the executors."
            ) from error
        return system, path

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at a URL."""
        fs, within = self._fs_of(path)
        return bool(fs.exists(within))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        fs, within = self._fs_of(path)
        return bytes(fs.cat_file(within))

    def write(self, path: str, data: bytes) -> None:
        """Write a file. It gets its name only when it is complete, if the file system can rename."""
        fs, within = self._fs_of(path)
        fs.makedirs(fs._parent(within), exist_ok=True)
        unfinished = f"{within}.tmp"
        fs.pipe_file(unfinished, data)
        fs.mv(unfinished, within)

    def write_text(self, path: str, text: str) -> None:
        """Write a text file."""
        self.write(path, text.encode())

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content; no-op if there is none."""
        fs, within = self._fs_of(path)
        if fs.exists(within):
            fs.rm(within, recursive=True)

    def is_parquet_dataset(self, path: str) -> bool:
        """Return whether there are rows of Parquet files at a URL."""
        if not self.exists(path):
            return False
        try:
            self.source(path)
        except ValueError:
            return False
        return True

    def source(self, path: str, **options: Any) -> Any:
        """Return a `ParquetSource` of the data at a URL.

        Args:
            path: the URL.
            options: other arguments of `ParquetSource`.
        """
        from farandole.parquet import ParquetSource

        fs, within = self._fs_of(path)
        return ParquetSource(within, filesystem=fs, **options)


class FilesystemStore(Store):
    """A store on a local or mounted file system, or on one that a package of fsspec supports."""


LocalStore = FilesystemStore


class HDFSStore(Store):
    """A store on HDFS, which pyarrow reaches by libhdfs (JAVA_HOME, HADOOP_HOME and CLASSPATH on all machines).

    Args:
        prefix_path: the folder, with or without hdfs://.
        host: the name node; None: that of the URL, or of Hadoop's configuration.
        port: the port of the name node.
        user: the user's name.
        kerb_ticket: the path of Kerberos' ticket cache.
        driver: ignored; libhdfs is used.
        extra_conf: other settings of Hadoop.
        options: other arguments of `Store`.

    Raises:
        ValueError: the URL has another scheme.
    """

    def __init__(
        self,
        prefix_path: str,
        *args: Any,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        given = {"host": host, "port": port, "user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        of_hdfs = {name: value for name, value in given.items() if value is not None}
        options["storage_options"] = {**(options.get("storage_options") or {}), **of_hdfs}
        super().__init__(prefix_path, *args, **options)

    def _url(self, path: str) -> str:
        path = _text_of(path)
        scheme, found, _ = path.partition("://")
        if found and scheme != "hdfs":
            raise InvalidRequestError(f"{path} is not on HDFS: give a path, or a URL that begins with hdfs://.")
        return path if found else f"hdfs://{path if path.startswith('/') else f'/{path}'}"
