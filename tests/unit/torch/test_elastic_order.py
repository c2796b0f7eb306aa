"""The order in torch's arithmetic: bit for bit that of `farandole.worker.elastic.permutation`."""

from collections.abc import Iterator

import pytest
import torch

from farandole.torch.elastic.order import indices, numbers
from farandole.worker.elastic.ledger import Ledger
from farandole.worker.elastic.permutation import Permutation


@pytest.mark.parametrize("size", [1, 2, 33, 64, 65, 1000, 4096, 4097])
@pytest.mark.parametrize("seed", [0, 3, -1])
def test_whole_small_permutation_equals_that_of_the_ledger(size: int, seed: int) -> None:
    order = Permutation(size, seed, epoch=5)
    assert numbers(order, torch.arange(size)).tolist() == order.indices(0, size)


@pytest.mark.parametrize("bits", range(12, 64))
@pytest.mark.parametrize("seed", range(4))
def test_permutations_of_all_sizes_equal_those_of_the_ledger(bits: int, seed: int) -> None:
    """Just below a power of two, there is next to nothing to walk; just above, almost half of the walks are longer."""
    for size in ((1 << bits) - 1, 1 << bits, (1 << bits) + 1):
        if size > 1 << 63:
            continue
        order = Permutation(size, seed, epoch=seed)
        for begin in (0, size // 2, size - 300):
            assert numbers(order, torch.arange(300) + begin).tolist() == order.indices(begin, begin + 300)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("share", [(), ((3, 5),), ((0, 127),), ((0, 128),), ((5, 9), (200, 900)), ((0, 1000),)])
def test_indices_are_those_of_the_ledger(share: tuple[tuple[int, int], ...], shuffle: bool) -> None:
    ledger = Ledger(1000, seed=9, epoch=2, shuffle=shuffle)
    assert indices(ledger, share) == ledger.indices(share)


@pytest.fixture
def another_default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("another_default_device")
def test_the_users_default_device_does_not_matter() -> None:
    ledger = Ledger(1000)
    assert indices(ledger, ((0, 1000),)) == ledger.indices(((0, 1000),))
