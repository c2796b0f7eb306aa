from __future__ import annotations

import copy
import pickle

import pytest

from farandole.worker.core.group import ProcessSet, WorldSet, global_process_set


def test_before_it_is_registered():
    process_set = ProcessSet([3, 1])
    assert process_set.ranks == [1, 3]
    assert (process_set.process_set_id, process_set.size(), process_set.included()) == (None, None, None)
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"
    with pytest.raises(ValueError, match="not registered"):
        process_set.rank()


def test_registered():
    process_set = ProcessSet(range(4, 0, -1))
    process_set.bind(7, 3)
    assert (process_set.size(), process_set.included(), process_set.rank()) == (4, True, 2)
    assert str(process_set) == "ProcessSet(process_set_id=7, ranks=[1, 2, 3, 4], mpi_comm=None)"
    process_set.unbind()
    assert (process_set.process_set_id, process_set.included()) == (None, None)


def test_not_a_member():
    process_set = ProcessSet([0])
    process_set.bind(1, 2)
    assert process_set.included() is False
    with pytest.raises(ValueError, match=r"Process is not part of provided process set\."):
        process_set.rank()


@pytest.mark.parametrize("wrong", [["a"], [1.5], 3, None, [[0, 1]], [0, 0]])
def test_what_is_no_list_of_ranks(wrong):
    with pytest.raises(ValueError):
        ProcessSet(wrong)


def test_sets_are_equal_only_to_themselves():
    assert ProcessSet([0]) != ProcessSet([0])


def test_the_world():
    world = WorldSet()
    assert str(world) == "ProcessSet(process_set_id=0, ranks=[], mpi_comm=None)"
    world.bind_world(3, 1)
    assert (world.ranks, world.rank(), world.size(), world.included()) == ([0, 1, 2], 1, 3, True)
    world.unbind()
    assert (world.process_set_id, world.ranks, world.included()) == (0, [], None)


def test_copies_and_pickles() -> None:
    """A copied module keeps its process set; a pickled one needs it to be registered again."""
    pair = ProcessSet([2, 0])
    pair.bind(1, 0)
    assert copy.deepcopy(pair) is pair
    restored = pickle.loads(pickle.dumps(pair))
    assert restored.ranks == [0, 2] and restored.process_set_id is None
    assert copy.deepcopy(global_process_set) is global_process_set
    assert pickle.loads(pickle.dumps(global_process_set)) is global_process_set
