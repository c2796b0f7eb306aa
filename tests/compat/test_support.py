"""`horovod.common.util`, `horovod.common.exceptions` and `horovod.data`: small things that scripts import."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from farandole.compat import exceptions, support
from farandole.compat.data import AsyncDataLoaderMixin, BaseDataLoader


def test_built_parts_are_reported() -> None:
    for verbose in (False, True):
        assert support.gloo_built(verbose) and support.mpi_built(verbose)
        others = (support.nccl_built, support.ddl_built, support.ccl_built)
        assert not any(built(verbose) for built in others)
    assert support.gloo_built(verbose=True)


def test_available_extensions_and_gpus_are_reported() -> None:
    assert support.extension_available("torch")
    assert support.extension_available("tensorflow") == (find_spec("tensorflow") is not None)
    assert not support.extension_available("mxnet")
    assert support.gpu_available("torch") == torch.cuda.is_available()
    assert support.gpu_available("tensorflow") in (False, torch.cuda.is_available())
    assert not support.gpu_available("mxnet")
    support.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "package/horovod/torch/__init__.py", "mpi_lib_v2")
    with pytest.raises(ImportError, match="--check-build"):
        support.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", "package/horovod/mxnet/__init__.py", "mpi_lib")


def test_where_an_extension_would_be() -> None:
    assert support.get_ext_suffix().endswith(".so")
    expected = os.path.join("package", "torch", "lib" + support.get_ext_suffix())
    assert support.get_extension_full_path("package/__init__.py", "torch", "lib") == expected


def test_installed_version() -> None:
    support.check_installed_version("torch", metadata.version("torch"))
    with pytest.warns(UserWarning, match=r"torch is there in version 0\.1"):
        support.check_installed_version("torch", "0.1")
    with pytest.raises(exceptions.HorovodVersionMismatchError) as caught:
        support.check_installed_version("nonesuch", "1.0", OSError("cannot load"))
    assert (caught.value.name, caught.value.version, caught.value.installed_version) == ("nonesuch", "1.0", None)
    assert isinstance(caught.value, ImportError) and isinstance(caught.value.__cause__, OSError)


def test_environment_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "before")
    monkeypatch.delenv("NEW", raising=False)
    with pytest.raises(KeyError), support.env(THERE="now", NEW="new", OTHER=None):
        assert (os.environ["THERE"], os.environ["NEW"]) == ("now", "new")
        raise KeyError
    assert os.environ["THERE"] == "before" and "NEW" not in os.environ


def test_op_and_average() -> None:
    class Ops:
        Average, Sum = "average", "sum"

    handle = support.get_average_backwards_compatibility_fun(Ops)
    assert handle(None, None) == "average"
    assert handle("max", None) == "max"
    assert handle(0, None) == 0
    for average, expected in ((True, "average"), (False, "sum")):
        with pytest.warns(DeprecationWarning, match="average="):
            assert handle(None, average) == expected
    words = "The op parameter supersedes average. Please provide only one of them."
    with pytest.raises(ValueError, match=re.escape(words)):
        handle("sum", False)


@pytest.mark.parametrize(
    ("items", "parts", "expected"),
    [(5, 2, [[0, 1, 2], [3, 4]]), (4, 2, [[0, 1], [2, 3]]), (1, 3, [[0], [], []]), (0, 1, [[]])],
)
def test_split_list(items: int, parts: int, expected: list[list[int]]) -> None:
    assert support.split_list(list(range(items)), parts) == expected


def test_small_questions() -> None:
    assert [number for number in range(-1, 10) if support.num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert support.is_iterable("abc") and support.is_iterable(iter([])) and not support.is_iterable(3)
    calls: list[int] = []
    remembering = support._cache(lambda n, twice=False: calls.append(n) or n * (1 + twice))
    assert [remembering(2), remembering(2), remembering(2, twice=True)] == [2, 2, 4]
    assert calls == [2, 2]


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.13.0", "2.4.0", True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.4.0rc1", "2.4.1", False),
        ("2.4", "2.4.0", True),
        ("1.9.9", "2.0.0", False),
    ],
)
def test_versions(version: str, target: str, expected: bool) -> None:
    assert support.is_version_greater_equal_than(version, target) is expected
    with pytest.raises(ValueError, match="three numbers"):
        support.is_version_greater_equal_than(version, "2.4")


def test_exceptions() -> None:
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert exceptions.HostsUpdatedInterrupt().skip_sync is False
    assert isinstance(exceptions.HostsUpdatedInterrupt(skip_sync=True), RuntimeError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync


# --- data loaders ---------------------------------------------------------------------------------------------------


class Numbers(BaseDataLoader):
    """Batches 0, 1, 2 ... of one epoch, or an exception in between."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.count = count
        self.fails_at = fails_at
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[Any]:
        for number in range(self.count):
            self.threads.add(threading.get_ident())
            if number == self.fails_at:
                raise OSError("the disk is gone")
            yield number

    def _process_batch(self, batch: Any) -> Any:
        return batch * 10


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    """The same, read ahead."""


def test_a_loader() -> None:
    loader = Numbers(3)
    assert (len(loader), list(loader), list(loader)) == (3, [0, 10, 20], [0, 10, 20])
    for use in (len, list):
        with pytest.raises(NotImplementedError):
            use(BaseDataLoader())


@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_loader_that_reads_ahead(size: int) -> None:
    loader = AsyncNumbers(async_loader_queue_size=size, count=5)
    for _ in range(3):
        assert list(loader) == [0, 10, 20, 30, 40]
    assert loader.threads and threading.get_ident() not in loader.threads
    loader.close_async_loader()
    assert not [thread for thread in threading.enumerate() if thread.ident in loader.threads]
    assert list(loader) == [0, 10, 20, 30, 40]  # It can be used again.
    loader.close_async_loader()
    loader.close_async_loader()


def test_a_loader_that_does_not_read_ahead() -> None:
    loader = AsyncNumbers(async_loader_queue_size=0, count=2)
    assert list(loader) == [0, 10]
    assert loader.threads == {threading.get_ident()}
    loader.close_async_loader()


def test_errors_while_reading_are_raised_where_batches_are_used() -> None:
    loader = AsyncNumbers(async_loader_queue_size=2, count=5, fails_at=2)
    for _ in range(2):
        seen = []
        with pytest.raises(OSError, match="the disk is gone"):
            for batch in loader:
                seen.append(batch)
        assert seen == [0, 10]
    loader.close_async_loader()


def test_a_loader_is_closed_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    loader = AsyncNumbers(1, True, 1000)
    assert next(iter(loader)) == 0
    loader.close_async_loader()
    assert capsys.readouterr().out.splitlines() == ["AsyncNumbers: reading begins", "AsyncNumbers: closed"]
    assert list(loader)[:2] == [0, 10]
    loader.close_async_loader()
