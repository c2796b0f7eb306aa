from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.worker.core.dtype import DType, Sum
from farandole.worker.core.request import RECURRING_NAMES, Names, make_request


def test_fields():
    request = make_request(
        Kind.ALLREDUCE,
        "gradient",
        dtype=DType.BF16,
        op=Sum,
        group=3,
        shape=(2, 5),
        prescale=0.5,
        postscale=2.0,
        input=64,
        output=128,
    )
    assert (request.kind, request.dtype, request.group, request.ndim) == (0, 10, 3, 2)
    assert request.shape[:2] == [2, 5]
    options = [(each.name, each.value) for each in request.options[: request.option_count]]
    assert options == [(b"op", 1.0), (b"prescale", 0.5), (b"postscale", 2.0)]
    assert (request.name, request.input, request.output) == (b"gradient", 64, 128)


def test_defaults():
    request = make_request(Kind.BARRIER, "b")
    assert (request.ndim, request.input, request.output, request.group) == (0, None, None, 0)
    assert not request.options and request.option_count == 0


def test_each_operation_and_group_counts_by_itself():
    names = Names()
    assert [names.next("allreduce", 0) for _ in range(3)] == ["noname.0", "noname.1", "noname.2"]
    assert names.next("allreduce", 1) == names.next("broadcast", 0) == "noname.0"
    names.give_back("allreduce", 0)
    assert names.next("allreduce", 0) == "noname.2"
    names.restart(1)
    assert (names.next("allreduce", 1), names.next("allreduce", 0)) == ("noname.0", "noname.3")
    names.restart_all()
    assert [names.next("allreduce", 0) for _ in range(2)] == ["noname.1.0", "noname.1.1"]


def test_names_of_calls_that_may_recur_do_so_and_others_do_not():
    names = Names()
    first = [names.next("allreduce", 0, recurs=True) for _ in range(RECURRING_NAMES)]
    assert len(set(first)) == RECURRING_NAMES and first[:2] == ["noname.0", "noname.1"]
    assert names.next("allreduce", 0) == f"noname.{RECURRING_NAMES}"
    assert names.next("allreduce", 0, recurs=True) == "noname.1"


def test_upcoming_name_is_taken_once():
    names = Names()
    upcoming = names.upcoming("allreduce", 0)
    assert upcoming == names.upcoming("allreduce", 0) == "noname.0"
    assert names.take("allreduce", 0, upcoming)
    assert not names.take("allreduce", 0, upcoming)
    assert names.next("allreduce", 0, recurs=True) == "noname.1"
    names.give_back("allreduce", 0)
    assert names.upcoming("allreduce", 0) == "noname.1"


def test_names_of_before_a_join_come_again_only_after_the_next_one():
    names = Names()
    before = names.upcoming("allreduce", 0)
    seen = []
    for _ in range(4):
        names.restart_all()
        assert not names.take("allreduce", 0, before)
        seen.append(names.next("allreduce", 0, recurs=True))
    assert seen == ["noname.1.0", "noname.0", "noname.1.0", "noname.0"]
