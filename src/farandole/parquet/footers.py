"""The footers of Parquet files: which files and row groups there are, and which columns they have.

One process reads them for all, and sends the others what they need.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from farandole.errors import InvalidRequestError

# Reading a footer mostly means waiting for a remote file system.
_AT_ONCE = 16

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Footers(msgspec.Struct, frozen=True):
    """The contents of the footers that are used."""

    files: tuple[tuple[str, tuple[int, ...]], ...]
    """The path of each file within its file system, and the number of rows of each of its row groups."""
    columns: tuple[str, ...]


def arrow() -> Any:
    """Import pyarrow, with the modules that are used here, and return it.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the message says what to do.
    """
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"farandole.parquet needs pyarrow, but {error.name} is not installed: pip install 'farandole[parquet]'.",
            name=error.name,
        ) from error
    return pyarrow


def file_system(path: Paths, given: Any) -> tuple[Any, list[str]]:
    """Return pyarrow's file system for paths, and the paths within it.

    Args:
        path: a path or several; a URL with a scheme, unless a file system is given.
        given: a file system of pyarrow or fsspec, or None.

    Raises:
        InvalidRequestError: there is no path, or no file system for it.
    """
    fs = arrow().fs
    paths = _listed(path)
    if given is not None:
        if not isinstance(given, fs.FileSystem) and not hasattr(given, "info"):
            raise InvalidRequestError(f"filesystem={given!r:.80} is not a file system of pyarrow or fsspec.")
        return given if isinstance(given, fs.FileSystem) else fs.PyFileSystem(fs.FSSpecHandler(given)), paths
    found = [_of_url(fs, each) for each in paths]
    if any(system != found[0][0] for system, _ in found):
        raise InvalidRequestError("all paths of a ParquetSource must be of one file system: make one source of each.")
    return found[0][0], [within for _, within in found]


def _listed(path: Any) -> list[str]:
    given = [path] if isinstance(path, str | os.PathLike) else path
    try:
        listed = [os.fspath(each) for each in given]
    except TypeError:
        listed = []
    if not listed or not all(isinstance(each, str) for each in listed):
        raise InvalidRequestError(
            f"ParquetSource needs a path: pass a file, a folder, or a list of them, not {path!r:.80}."
        )
    return listed


def _of_url(fs: Any, path: str) -> tuple[Any, str]:
    if "://" not in path:
        return fs.LocalFileSystem(), os.path.abspath(path)
    try:
        system, within = fs.FileSystem.from_uri(path)
        return system, within
    except (ValueError, NotImplementedError):  # A scheme that pyarrow does not know; ArrowInvalid is a ValueError.
        pass
    try:
        import fsspec

        system, within = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise InvalidRequestError(
            f"there is no file system for {path}: {error}. Install the package of fsspec for it (such as gcsfs or "
            "adlfs), or pass filesystem=."
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), within


def read_footers(system: Any, paths: Sequence[str]) -> Footers:
    """Read the footers of all files below the paths.

    Raises:
        InvalidRequestError: there are no files or no rows, a file is not Parquet, or files have different columns.
    """
    files = [file for path in paths for file in _files(system, path)]
    if not files:
        raise InvalidRequestError(
            f"there are no Parquet files at {', '.join(paths)}: files in a folder are read if their names end with "
            ".parquet and begin with neither '.' nor '_'."
        )
    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
        read = list(pool.map(lambda file: _footer(system, file), files))
    for file, (_, schema) in zip(files, read, strict=True):
        if not schema.equals(read[0][1]):
            raise InvalidRequestError(
                f"the columns of {file} differ from those of {files[0]}: write all files with one schema.\n"
                f"{files[0]}:\n{read[0][1]}\n{file}:\n{schema}"
            )
    if not any(map(sum, (rows for rows, _ in read))):
        raise InvalidRequestError(f"the Parquet files at {', '.join(paths)} have no rows.")
    return Footers(tuple((file, rows) for file, (rows, _) in zip(files, read, strict=True)), tuple(read[0][1].names))


def _files(system: Any, path: str) -> list[str]:
    """Return the files at a path: itself, or those of a folder, sorted by path."""
    fs = arrow().fs
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise InvalidRequestError(f"there is no file or folder at {path}: check the path of the ParquetSource.")
    if info.type == fs.FileType.File:
        return [path]
    found = system.get_file_info(fs.FileSelector(path, recursive=True))
    return sorted(each.path for each in found if each.type == fs.FileType.File and _counts(each.path, path))


def _counts(file: str, folder: str) -> bool:
    """Return whether a file in a folder contains data, unlike a marker such as _SUCCESS or a temporary file."""
    names = file[len(folder) :].strip("/").split("/")
    return file.endswith(".parquet") and not any(name.startswith((".", "_")) for name in names)


def _footer(system: Any, file: str) -> tuple[tuple[int, ...], Any]:
    pyarrow = arrow()
    try:
        with system.open_input_file(file) as opened:
            metadata = pyarrow.parquet.read_metadata(opened)
    except pyarrow.ArrowInvalid as error:
        raise InvalidRequestError(f"{file} is not a Parquet file, or is damaged: {error}") from error
    rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return rows, metadata.schema.to_arrow_schema().remove_metadata()
