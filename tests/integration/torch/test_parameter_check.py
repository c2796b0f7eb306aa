"""Ranks that begin with different parameters are reported, with the line that the script lacks."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd


def told_in_steps(seeds, broadcast=False, steps=3, joins=False, process_set=hvd.global_process_set, **options):
    """Return what the user is told, as (rank, text), in a training whose ranks begin with these seeds."""
    from farandole.worker.gradients import parameter_check

    said = []
    usual, parameter_check.tell_user = parameter_check.tell_user, lambda level, text, rank: said.append((rank, text))
    try:
        torch.manual_seed(seeds[hvd.rank()])
        model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Linear(3, 1))
        optimizer = torch.optim.Adam(model.parameters())
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=process_set, **options)
        if broadcast:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(0 if joins and hvd.rank() == 0 else steps):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
        if joins:
            hvd.join()
    finally:
        parameter_check.tell_user = usual
    return said


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_rank_0_warns_and_names_the_line_to_add(worlds, op):
    def body(op):
        how = {"op": getattr(hvd, op)}
        return told_in_steps([1, 2], **how), told_in_steps([1, 2], broadcast=True, **how), told_in_steps([3, 3], **how)

    first, second = worlds.run(2, body, op)
    ((rank, text),) = first[0]
    assert rank == 0 and "hvd.broadcast_parameters(model.state_dict(), root_rank=0)" in text
    assert "FARANDOLE_CHECK_PARAMETERS=0" in text
    assert (first[1:], second) == (([], []), ([], [], []))


def test_parameters_that_drift_apart_are_told_of_if_asked_for(worlds):
    """With a period of steps, such as an epoch's; once."""

    def body():
        from farandole.worker.gradients import parameter_check

        said = []
        usual, parameter_check.tell_user = parameter_check.tell_user, lambda *words: said.append(words)
        model = torch.nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        counts = []
        for number in range(12):
            model(torch.ones(1, 6)).sum().backward()
            if number == 4 and hvd.rank() == 1:
                with torch.no_grad():
                    model.weight.add_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            counts.append(len(said))
        parameter_check.tell_user = usual
        return counts

    first, second = worlds.run(2, body, FARANDOLE_CHECK_PARAMETERS="3")
    # A check begins in steps 0, 3 and 6, and is looked at in a later one.
    assert first[:7] == [0] * 7 and first[-1] == 1 and second == [0] * 12


def test_check_can_be_switched_off(worlds):
    assert worlds.run(2, lambda: told_in_steps([1, 2]), FARANDOLE_CHECK_PARAMETERS="0") == [[], []]


def test_ranks_that_have_joined_and_ranks_of_other_sets_do_not_count(worlds):
    def body():
        pair = hvd.add_process_set([1, 2])
        try:
            # Rank 0 has other parameters, and has joined; or is not a member.
            joined = told_in_steps([1, 2, 2], joins=True), told_in_steps([1, 1, 2], joins=True)
            members = told_in_steps([1, 2, 2], process_set=pair), told_in_steps([1, 1, 2], process_set=pair)
        finally:
            hvd.remove_process_set(pair)
        return [[len(said) for said in each] for each in (joined, members)]

    # A rank that has joined tells nothing.
    assert worlds.run(3, body) == [[[0, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 0], [0, 0]]]


def test_a_first_step_that_one_rank_leaves_out_delays_nobody(worlds):
    """As a gradient scaler may decide."""

    def body():
        torch.manual_seed(1)
        model = torch.nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for number in range(4):
            model(torch.ones(1, 6)).sum().backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                if (number, hvd.rank()) != (0, 1):
                    optimizer.step()
            optimizer.zero_grad()
        return True

    assert worlds.run(2, body) == [True, True]


def test_bits_of_every_type_count(worlds):
    def body():
        from farandole.torch.parameters import parameters_digest

        tensors = [
            torch.ones(3, 2),
            torch.ones(2, dtype=torch.bfloat16),
            torch.ones(2, dtype=torch.float64),
            torch.ones(2, dtype=torch.complex64),
            torch.ones(2, dtype=torch.complex128),
            torch.ones(2).to(torch.float8_e4m3fn),
            torch.ones(()),
            torch.ones(4, 4).t()[:, ::2],
            torch.empty(0),
        ]
        usual = parameters_digest(tensors)
        digests = {usual}
        for number, tensor in enumerate(tensors[:-1]):
            changed = list(tensors)
            changed[number] = (tensor.to(torch.complex128) * 2).to(tensor.dtype)
            digests.add(parameters_digest(changed))
        assert len(digests) == len(tensors) and usual == parameters_digest(tensors)

    worlds.run(1, body)
