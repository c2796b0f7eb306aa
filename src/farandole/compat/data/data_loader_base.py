"""`horovod.data`: data loaders whose batches are read by a thread ahead of time."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

_EPOCH_ENDS = object()


class BaseDataLoader:
    """The base of a data loader; a subclass defines `__len__` and `_iterate`."""

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Read the batches of one epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Return a batch in the form for the trainer; subclasses may override this."""
        return batch


class AsyncDataLoaderMixin:
    """Makes a thread prefetch batches. List it before the loader's class, so that its `__iter__` is used.

    The thread reads epoch after epoch, and pauses when the queue is full. An exception of `_iterate` is raised where
    the batches are used.

    Args:
        async_loader_queue_size: number of batches to prefetch; 0: none, and no thread.
        debug_data_loader: whether to print when reading begins and ends.

    Example:
        >>> class Numbers(BaseDataLoader):
        ...     def __len__(self):
        ...         return 3
        ...
        ...     def _iterate(self):
        ...         return iter(range(3))
        >>> class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
        ...     pass
        >>> loader = AsyncNumbers(async_loader_queue_size=2)
        >>> list(loader), list(loader)
        ([0, 1, 2], [0, 1, 2])
        >>> loader.close_async_loader()
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self._closing = threading.Event()
        self._batches: queue.Queue[Any] = queue.Queue(max(1, async_loader_queue_size))
        self._thread: threading.Thread | None = None

    def close_async_loader(self) -> None:
        """End the thread. Batches that were read ahead are dropped."""
        self._closing.set()
        thread, self._thread = self._thread, None
        while thread is not None and thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._batches.get_nowait()  # It may be waiting for room.
            thread.join(0.01)
        self._tell("closed")

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._thread is None:
            self._closing.clear()
            self._batches = queue.Queue(self.async_loader_queue_size)
            self._thread = threading.Thread(target=self._read_ahead, name="async-data-loader", daemon=True)
            self._thread.start()
            self._tell("reading begins")
        while (batch := self._batches.get()) is not _EPOCH_ENDS:
            if isinstance(batch, _Raised):
                self._thread = None
                raise batch.error
            yield self._process_batch(batch)  # type: ignore[attr-defined]

    def _read_ahead(self) -> None:
        try:
            while not self._closing.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if self._closing.is_set():
                        return
                    self._batches.put(batch)
                self._batches.put(_EPOCH_ENDS)
        except Exception as error:
            self._batches.put(_Raised(error))

    def _tell(self, what: str) -> None:
        if self.debug_data_loader:
            print(f"{type(self).__name__}: {what}")


class _Raised:
    """The exception that ended the reading thread, wrapped because a batch may itself be an exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error
