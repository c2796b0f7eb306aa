"""Element types with which nothing is calculated, such as complex numbers and keys: collectives move them."""

from __future__ import annotations

import numpy as np
import pytest


def test_broadcast_moves_all_types(world):
    """Every form gives the root's elements, and leaves the input of a form that is not in place as it was."""

    def body(front):
        hvd = front.hvd
        root = hvd.size() - 1
        wanted = front.opaque(root)
        for name, tensor in front.opaque(hvd.rank()).items():
            forms = [hvd.broadcast(tensor, root), *front.at_once([("broadcast", tensor, {"root_rank": root})])]
            np.testing.assert_array_equal(front.elements(tensor), front.elements(front.opaque(hvd.rank())[name]))
            if "in place" in front.has:
                forms.append(hvd.broadcast_(front.opaque(hvd.rank())[name], root))
                handle = hvd.broadcast_async_(front.opaque(hvd.rank())[name], root)
                forms.append(hvd.synchronize(handle))
            for result in forms:
                assert front.dtype(result) == front.dtype(wanted[name]), name
                np.testing.assert_array_equal(front.elements(result), front.elements(wanted[name]), err_msg=name)

    world.run(body)


def test_allgather_moves_all_types(world):
    """Plain and grouped; ranks may give different numbers of rows."""

    def body(front):
        hvd = front.hvd
        own, every = front.opaque(hvd.rank()), [front.opaque(rank) for rank in range(hvd.size())]

        def rows(rank):
            return 6 - rank if "ragged" in front.has else 6

        mine = [tensor[: rows(hvd.rank())] for tensor in own.values()]
        mine = [each.resolve_conj() if name == "conjugate" else each for name, each in zip(own, mine, strict=True)]
        forms = [[hvd.allgather(each) for each in mine]]
        if "grouped" in front.has:
            forms.append(hvd.grouped_allgather(mine))
            forms += front.at_once([("grouped_allgather", mine, {"name": "all_types"})])
        for results in forms:
            for name, result in zip(own, results, strict=True):
                wanted = np.concatenate(
                    [front.elements(theirs[name])[: rows(rank)] for rank, theirs in enumerate(every)]
                )
                np.testing.assert_array_equal(front.elements(result), wanted, err_msg=name)

    world.run(body)


@pytest.mark.needs("alltoall")
def test_alltoall_moves_all_types(world):
    """With equal parts and, where shapes may differ, with others."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        ways = [None, [6 // size] * size]
        if "ragged" in front.has:
            ways.append([1] * (size - 1) + [3])
        for name, tensor in front.opaque(rank).items():
            for splits in ways:
                if 6 % size and splits is None:
                    continue
                parts = splits or [6 // size] * size
                begin = sum(parts[:rank])
                elements = [front.elements(front.opaque(other)[name]) for other in range(size)]
                wanted = np.concatenate([each[begin : begin + parts[rank]] for each in elements])
                if splits is None:
                    results = [hvd.alltoall(tensor), *front.at_once([("alltoall", tensor, {})])]
                    results = [each[0] if isinstance(each, (tuple, list)) else each for each in results]
                else:
                    results = [hvd.alltoall(tensor, splits=splits)[0]]
                for result in results:
                    np.testing.assert_array_equal(front.elements(result), wanted, err_msg=name)

    world.run(body)


@pytest.mark.needs("grouped")
def test_reductions_refuse_them_in_a_sentence(world):
    """All reductions, on one rank alone; the next unnamed call matches on all."""

    def body(front):
        hvd = front.hvd
        one = front.tensor([1.0])
        wrong = front.unreducible() if hvd.rank() == 0 else []
        for tensor, words in wrong:
            for call in (
                lambda tensor=tensor: hvd.allreduce(tensor, op=hvd.Sum),
                lambda tensor=tensor: hvd.reducescatter(tensor, op=hvd.Sum),
                lambda tensor=tensor: hvd.reduce(tensor, 0, op=hvd.Sum),
                lambda tensor=tensor: hvd.grouped_allreduce([one, tensor], op=hvd.Sum),
            ):
                with pytest.raises(ValueError, match=words.split("(")[0]):
                    call()
        assert front.number(hvd.allreduce(one, op=hvd.Sum)) == hvd.size()

    world.run(body)


@pytest.mark.needs("grouped")
def test_ranks_that_differ_in_type_are_told_both_names(world):
    """Also where both types have elements of one size."""
    if world.size == 1:
        pytest.skip("one rank agrees with itself")

    def body(front):
        hvd = front.hvd
        opaque, is_first = front.opaque(hvd.rank()), hvd.rank() == 0
        for theirs, ours in (("uint16", "float16"), ("uint32", "complex64"), ("uint32", "float32")):
            if not {theirs, ours} <= {*opaque, *front.dtypes}:
                continue
            name = theirs if is_first else ours
            tensor = opaque[name] if name in opaque else front.tensor(np.ones((6, 2)), name)
            for method, how in (
                ("broadcast", {"root_rank": 0}),
                ("allgather", {}),
                ("alltoall", {"splits": [0] * hvd.size()}),
            ):
                try:
                    getattr(hvd, method)(tensor, name=f"{method} {theirs} {ours}".replace(" ", "_"), **how)
                except hvd.HorovodInternalError as error:
                    assert "Mismatched data types" in str(error), error
                    assert f"rank 0 sent {theirs}, but" in str(error) and f"sent {ours}." in str(error), error
                else:
                    raise AssertionError("ranks differ in type")

    world.run(body)
