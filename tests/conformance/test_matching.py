"""How requests of different ranks find each other, and what happens when they do not fit together."""

from __future__ import annotations

import random

import numpy as np
import pytest
from worlds import World


def test_any_order_of_submission(world):
    """Matching is by name: every rank submits in an order of its own, and waits in another."""

    def body(front):
        hvd = front.hvd
        shuffle = random.Random(hvd.rank()).shuffle

        def call(name):
            return "allreduce", front.tensor([name] * (name + 1), "int32"), {"name": f"any.{name}", "op": hvd.Sum}

        for _ in range(3):
            names = list(range(40))
            shuffle(names)
            for name, result in zip(names, front.at_once([call(name) for name in names]), strict=True):
                np.testing.assert_array_equal(front.array(result), [name * hvd.size()] * (name + 1))

    world.run(body)


@pytest.mark.needs("handles")
def test_named_requests_do_not_shift_unnamed_ones(world):
    """One rank has a named request in flight before its unnamed ones, the others after."""

    def body(front):
        hvd = front.hvd
        one = front.tensor([1.0])
        first = hvd.rank() == 0
        early = hvd.allreduce_async(one, name="named", op=hvd.Sum) if first else None
        unnamed = [hvd.allreduce_async(one * index, op=hvd.Sum) for index in range(3)]
        late = early if first else hvd.allreduce_async(one, name="named", op=hvd.Sum)
        assert [front.number(hvd.synchronize(handle)) for handle in unnamed] == [
            hvd.size() * index for index in range(3)
        ]
        assert front.number(hvd.synchronize(late)) == hvd.size()

    world.run(body)


@pytest.mark.needs("handles")
def test_handles(world):
    def body(front):
        hvd = front.hvd
        handle = hvd.allreduce_async(front.tensor([1.0]), op=hvd.Sum)
        assert isinstance(handle, int)
        while not hvd.poll(handle):
            pass
        assert front.number(hvd.synchronize(handle)) == hvd.size()
        assert hvd.synchronize(handle) is None
        try:
            hvd.poll(handle)
        except ValueError as error:
            assert f"Handle {handle} was not created or has been cleared." in str(error)
        else:
            raise AssertionError("poll took a handle that was cleared")

    world.run(body)


@pytest.mark.needs("handles")
def test_a_call_just_begun_is_not_done(world):
    """Scripts look whether calls are asynchronous: of several, `poll` says of one at least that it is not done."""

    def body(front):
        hvd = front.hvd
        for begin in (hvd.allreduce_async, hvd.allgather_async, hvd.reducescatter_async, hvd.alltoall_async):
            handles, at_once = [], []
            for _ in range(15):
                handles.append(begin(front.tensor(np.ones((4 * hvd.size(), 17)))))
                at_once.append(hvd.poll(handles[-1]))
            assert not all(at_once)
            for handle in handles:
                hvd.synchronize(handle)

    world.run(body)


@pytest.mark.needs("handles")
def test_tensors_that_nobody_holds_stay_alive(world):
    """Hundreds of requests whose tensors and handles are dropped at once; then memory is reused at will."""

    def body(front):
        hvd = front.hvd
        handles = [
            hvd.allreduce_async(front.tensor([float(index)] * 5000), name=f"dropped.{index}", op=hvd.Sum)
            for index in range(100)
        ]
        noise = [front.tensor([-1.0] * 5000) for _ in range(100)]
        assert len(noise) == 100
        for index, handle in enumerate(handles):
            assert (front.array(hvd.synchronize(handle)) == index * hvd.size()).all()

    world.run(body)


# What a rank submits under one name: (method, values, element type, further arguments).
PLAIN = ("allreduce", [1, 2, 3], "float32", {})
MISMATCHES = {
    "dtype": (PLAIN, ("allreduce", [1, 2, 3], "int32", {}), ["float32", "int32"]),
    "shape": (PLAIN, ("allreduce", [1, 2], "float32", {}), ["[3]", "[2]"]),
    "op": (PLAIN, ("allreduce", [1, 2, 3], "float32", {"op": 4}), ["Average", "Max"]),
    "prescale": (PLAIN, ("allreduce", [1, 2, 3], "float32", {"prescale_factor": 0.25}), ["0.25"]),
    "postscale": (PLAIN, ("allreduce", [1, 2, 3], "float32", {"postscale_factor": 0.125}), ["0.125"]),
    "root": (
        ("broadcast", [1.0], "float32", {"root_rank": 0}),
        ("broadcast", [1.0], "float32", {"root_rank": 1}),
        ["0", "1"],
    ),
    "gathered dimension": (
        ("allgather", [[1, 2]], "float32", {}),
        ("allgather", [[1, 2, 3]], "float32", {}),
        ["2", "3"],
    ),
    "exchanged dimension": (
        ("alltoall", [[1, 2]] * 4, "float32", {"splits": [0] * 4}),
        ("alltoall", [[1, 2, 3]] * 4, "float32", {"splits": [0] * 4}),
        ["alltoall", "2", "3"],
    ),
    "exchanged dtype": (
        ("alltoall", [1] * 4, "float32", {"splits": [0] * 4}),
        ("alltoall", [1] * 4, "int32", {"splits": [0] * 4}),
        ["float32", "int32"],
    ),
    "scattered shape": (
        ("reducescatter", [1] * 4, "float32", {}),
        ("reducescatter", [1] * 5, "float32", {}),
        ["reducescatter", "[4]", "[5]"],
    ),
    "scattered op": (
        ("reducescatter", [1] * 4, "float32", {}),
        ("reducescatter", [1] * 4, "float32", {"op": 1}),
        ["Average", "Sum"],
    ),
    "scattered prescale": (
        ("reducescatter", [1] * 4, "float32", {}),
        ("reducescatter", [1] * 4, "float32", {"prescale_factor": 0.25}),
        ["0.25"],
    ),
    "reduce root": (
        ("reduce", [1.0], "float32", {"root_rank": 0}),
        ("reduce", [1.0], "float32", {"root_rank": 1}),
        ["0", "1"],
    ),
    "reduce op": (
        ("reduce", [1.0], "float32", {"root_rank": 0}),
        ("reduce", [1.0], "float32", {"root_rank": 0, "op": 3}),
        ["Average", "Min"],
    ),
    "adasum": (PLAIN, ("allreduce", [1, 2, 3], "float32", {"op": 2}), ["Average", "Adasum"]),
    "gathered rank": (("allgather", [[1, 2]], "float32", {}), ("allgather", [1, 2], "float32", {}), ["2", "1"]),
}


NEEDED = {
    "scattered prescale": "scaled reducescatter",
    "exchanged dimension": "alltoall",
    "exchanged dtype": "alltoall",
    "scattered shape": "ragged",
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.needs(NEEDED[what])] if what in NEEDED else []) for what in MISMATCHES],
)
def test_mismatch(world, what):
    """All ranks get an error that names the ranks and what each sent; nothing else fails, and the job goes on."""
    if world.size == 1:
        pytest.skip("one rank agrees with itself")
    first, other, words = MISMATCHES[what]

    def body(front):
        hvd = front.hvd
        last = hvd.size() - 1
        for _ in range(2):  # The second time the engine knows the name.
            method, values, dtype, arguments = other if hvd.rank() == last else first
            arguments = {key: value[: hvd.size()] if key == "splits" else value for key, value in arguments.items()}
            beside = front.begin("allreduce", front.tensor([1.0]), name="beside", op=hvd.Sum)
            try:
                getattr(hvd, method)(front.tensor(values, dtype), name="odd.one.out", **arguments)
            except hvd.HorovodInternalError as error:
                text = str(error)
            else:
                raise AssertionError(f"a mismatch of {what} went through")
            assert "odd.one.out" in text and ("rank 0" in text or "ranks 0" in text) and f"rank {last}" in text, text
            assert "Mismatched" in text and all(word in text for word in words), text
            assert front.number(front.finish(beside)) == hvd.size()
            np.testing.assert_array_equal(front.array(hvd.allreduce(front.tensor([2.0]), name="odd.one.out")), [2.0])
        return text

    assert len(set(world.run(body))) == 1


def test_mismatch_of_kind(world):
    """The same name for an allreduce and a broadcast: below the front ends, which give each kind names of its own."""
    if world.size == 1:
        pytest.skip("one rank agrees with itself")

    def body(front):
        from farandole.base.request_kind import Kind
        from farandole.errors import MismatchError
        from farandole.worker.core.basics import current
        from farandole.worker.core.dtype import DType
        from farandole.worker.core.request import make_request

        rank = front.hvd.rank()
        memory = np.ones(4, np.float32)
        kind = Kind.BROADCAST if rank == 0 else Kind.ALLREDUCE
        address = memory.ctypes.data
        request = make_request(kind, "either", dtype=DType.F32, shape=(4,), input=address, output=address)
        session = current()
        try:
            session.run(request, session.engine.result)
        except MismatchError as error:
            return str(error)
        raise AssertionError("a mismatch of kind went through")

    for text in world.run(body):
        assert "broadcast" in text and "allreduce" in text, text


def test_wrong_calls(world):
    """What is wrong whatever the others do is a ValueError at the call; no other rank notices."""

    def body(front):
        hvd = front.hvd
        one = front.tensor([1.0])

        def refused(call, *words):
            try:
                call()
            except ValueError as error:
                assert not isinstance(error, hvd.HorovodInternalError)
                assert all(word in str(error) for word in words), error
            else:
                raise AssertionError(f"{words} went through")

        if hvd.rank() == 0:
            refused(lambda: hvd.broadcast(one, hvd.size()), "root")
            refused(lambda: hvd.broadcast(one, -1), "root")
            refused(lambda: hvd.allreduce(one, op=6), "reduction")
            refused(lambda: hvd.allgather(front.tensor(1.0)), "dimension")
            if "process sets" in front.has:
                unknown = hvd.ProcessSet([0])
                refused(lambda: hvd.allreduce(one, process_set=unknown), "Process set", "not been registered")
            for tensor, words in front.unsendable() + front.unreducible():
                refused(lambda tensor=tensor: hvd.allreduce(tensor), words)
            for tensor, words in front.unwritable():
                refused(lambda tensor=tensor: hvd.allreduce_(tensor), words)
        assert front.number(hvd.allreduce(one, op=hvd.Sum)) == hvd.size()

    world.run(body)


@pytest.mark.needs("handles")
def test_duplicate_name_in_flight(world):
    """The second request is refused; the first goes on; a group with one duplicate submits nothing."""
    if world.size == 1:
        pytest.skip("needs a rank that keeps the first request in flight")

    def body(front):
        hvd = front.hvd
        last = hvd.size() - 1
        one = front.tensor([1.0])
        if hvd.rank() != last:  # The last rank keeps the first request in flight until the others have looked.
            handle = hvd.allreduce_async(one, name="twice", op=hvd.Sum)
            try:
                hvd.allreduce_async(one, name="twice", op=hvd.Sum)
            except ValueError as error:
                assert "twice" in str(error)
            else:
                raise AssertionError("a duplicate went through")
        hvd.barrier()
        if hvd.rank() == last:
            handle = hvd.allreduce_async(one, name="twice", op=hvd.Sum)
        assert front.number(hvd.synchronize(handle)) == hvd.size()

    world.run(body)


@pytest.mark.needs("grouped")
def test_a_group_is_submitted_whole_or_not_at_all(world):
    """Whatever is wrong with one member, nothing is in flight afterwards: the same names can be used at once."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        one = front.tensor([1.0])
        matrix = front.tensor(np.ones((size, 2)))
        bad = [front.tensor(1.0)]  # For those that need rows.
        unsendable = [tensor for tensor, _ in front.unsendable()]
        unreducible = unsendable + [tensor for tensor, _ in front.unreducible()]
        for method, wrong in (
            ("grouped_allreduce", unreducible),
            ("grouped_allreduce_", unreducible),
            ("grouped_allreduce_async", unreducible),
            ("grouped_allgather", bad + unsendable),
            ("grouped_allgather_async", bad + unsendable),
            ("grouped_reducescatter", bad + unreducible),
            ("grouped_reducescatter_async", bad + unreducible),
            ("grouped_reduce", unreducible),
            ("grouped_reduce_", unreducible),
            ("grouped_reduce_async", unreducible),
        ):
            if method.endswith(("_", "_async")) and "handles" not in front.has:
                continue
            how = {"root_rank": 0} if "reduce" in method.split("_") else {}
            for name in (None, "whole"):
                for tensor in wrong if rank == 0 else ():
                    try:
                        getattr(hvd, method)([matrix, matrix, tensor], name=name, **how)
                    except ValueError:
                        pass
                    else:
                        raise AssertionError(f"{method} took a bad member")
                outputs = getattr(hvd, method)([front.copy(matrix), front.copy(matrix)], name=name, **how)
                assert len(hvd.synchronize(outputs) if isinstance(outputs, int) else outputs) == 2
        assert front.number(hvd.allreduce(one, op=hvd.Sum)) == size

    world.run(body)


@pytest.mark.needs("torch")
def test_a_group_with_a_duplicate_submits_nothing(world):
    """The name of its second member is in flight: it is refused, and its first member's name is free."""
    if world.size == 1:
        pytest.skip("needs a rank that keeps the first request in flight")

    def body(front):
        hvd = front.hvd
        last = hvd.size() - 1
        one = front.tensor([1.0])
        single, member = "allreduce.group_2of2", "group"
        from farandole.torch.collectives import allreduce_call  # A name in flight that is a group's member's.
        from farandole.worker.core.basics import current

        session = current()

        def begin():
            name = single.replace("allreduce.", "grouped_allreduce.")
            call = allreduce_call(session, [one], [front.copy(one)], [name], hvd.Sum, 1.0, 1.0, 0)
            return session.handles.begin(call)

        if hvd.rank() != last:
            handle = begin()
            try:
                hvd.grouped_allreduce_async([one, one], name=member, op=hvd.Sum)
            except ValueError as error:
                assert "group_2of2" in str(error)
            else:
                raise AssertionError("a duplicate went through")
        hvd.barrier()
        if hvd.rank() == last:
            handle = begin()
        assert front.number(hvd.synchronize(handle)[0]) == hvd.size()
        assert [front.number(each) for each in hvd.grouped_allreduce([one, one], name=member, op=hvd.Sum)] == [
            hvd.size()
        ] * 2

    world.run(body)


@pytest.mark.needs("handles")
def test_every_kind_refuses_a_name_in_flight(world):
    """Back to back, whether the first is done or not; waiting for it frees the name."""

    def body(front):
        hvd = front.hvd
        tensor = front.tensor(np.ones((hvd.size(), 2)))
        for method, arguments in (
            ("allreduce_async", {}),
            ("allgather_async", {}),
            ("broadcast_async", {"root_rank": 0}),
            ("alltoall_async", {}),
            ("reducescatter_async", {}),
            ("reduce_async", {"root_rank": 0}),
            ("grouped_allreduce_async", {}),
            ("grouped_allgather_async", {}),
            ("grouped_reducescatter_async", {}),
            ("grouped_reduce_async", {"root_rank": 0}),
        ):
            given = [tensor, tensor] if method.startswith("grouped") else tensor
            handle = getattr(hvd, method)(given, name="back to back", **arguments)
            try:
                getattr(hvd, method)(given, name="back to back", **arguments)
            except ValueError as error:
                assert not isinstance(error, hvd.HorovodInternalError) and "same name" in str(error), error
            else:
                raise AssertionError(f"{method} took a name in flight")
            hvd.synchronize(handle)
            hvd.synchronize(getattr(hvd, method)(given, name="back to back", **arguments))

    world.run(body)


@pytest.mark.needs("torch")
def test_a_group_on_several_devices_is_refused(world):
    """HorovodInternalError, as in Horovod; nothing is in flight afterwards."""

    def body(front):
        import torch

        hvd = front.hvd
        for method in ("grouped_allreduce", "grouped_allreduce_", "grouped_allgather", "grouped_reducescatter"):
            try:
                getattr(hvd, method)([torch.ones(4), torch.ones(4, device="meta")], name="devices")
            except hvd.HorovodInternalError as error:
                assert "Tensors in list must be on same device" in str(error) and "cpu, meta" in str(error)
            else:
                raise AssertionError(f"{method} took tensors on two devices")
            assert len(getattr(hvd, method)([torch.ones(4), torch.ones(4)], name="devices")) == 2

    world.run(body)


@pytest.mark.needs("alltoall", "grouped", "join")
def test_without_a_world_a_collective_fails_in_both_ways(nursery, front):
    """Horovod raises HorovodInternalError for a collective and ValueError for a question; one class is both."""

    def body(name):
        from frontends import FRONT_ENDS

        front = FRONT_ENDS[name]
        hvd, one = front.hvd, front.tensor([1.0])
        hvd.shutdown()
        for call in (
            lambda: hvd.allreduce(one),
            lambda: hvd.grouped_allgather([one]),
            lambda: hvd.broadcast(one, 0),
            lambda: hvd.alltoall(one),
            lambda: hvd.reducescatter(one),
            lambda: hvd.reduce(one, 0),
            hvd.barrier,
            *([hvd.join] if "join" in front.has else []),
            lambda: hvd.broadcast_object(1),
            hvd.rank,
        ):
            try:
                call()
            except hvd.HorovodInternalError as error:
                assert isinstance(error, ValueError) and "use hvd.init()" in str(error)
            else:
                raise AssertionError("it went through without a world")
        assert hvd.gloo_built() and not hvd.mpi_enabled()

    with World(nursery, 1) as world:
        world.run(body, front)
