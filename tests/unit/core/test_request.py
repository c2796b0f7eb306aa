from __future__ import annotations

import threading

from farandole.base.request_kind import Kind
from farandole.worker.core.dtype import DType, Sum
from farandole.worker.core.request import RECURRING_NAMES, Names, Numbers, make_request


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
    names.restart(1)
    assert (names.next("allreduce", 1), names.next("allreduce", 0)) == ("noname.0", "noname.3")
    names.restart_all()
    assert [names.next("allreduce", 0) for _ in range(2)] == ["noname.1.0", "noname.1.1"]
    names.enter_world()
    assert names.next("allreduce", 0) == "noname.0"


def test_number_that_is_given_back_is_the_next_one():
    numbers = Numbers()
    assert [numbers.take() for _ in range(3)] == [0, 1, 2]
    numbers.give_back(2)
    assert [numbers.take() for _ in range(2)] == [2, 3]


def test_threads_get_different_numbers():
    numbers = Numbers()
    taken: list[int] = []

    def take():
        for _ in range(2000):
            number = numbers.take()
            if number % 3:
                taken.append(number)
            else:
                numbers.give_back(number)
                taken.append(numbers.take())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(8000))


def test_names_of_calls_that_may_recur_do_so_and_others_do_not():
    names = Names()
    first = [names.name(number, recurs=True) for number in range(RECURRING_NAMES)]
    assert len(set(first)) == RECURRING_NAMES and first[:2] == ["noname.0", "noname.1"]
    assert names.name(RECURRING_NAMES, recurs=False) == f"noname.{RECURRING_NAMES}"
    assert names.name(RECURRING_NAMES + 1, recurs=True) == "noname.1"


def test_names_of_before_a_join_come_again_only_after_the_next_one():
    names = Names()
    seen = []
    for _ in range(4):
        names.numbers("allreduce", 0).take()
        names.restart_all()
        seen.append(names.name(names.numbers("allreduce", 0).take(), recurs=True))
    assert seen == ["noname.1.0", "noname.0", "noname.1.0", "noname.0"]
