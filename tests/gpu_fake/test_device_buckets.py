"""Gradients on a GPU: buckets of one request each, and no step waits for the GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fake_gpu_device import DEVICE, FakeGpu
from small_trainings import flat, make_data, make_model, make_optimizer, train, train_alone

import farandole.torch as hvd


def train_on(device, kind, arguments, how, time="random"):
    FakeGpu.of_environment().load().set_time(time, longest_delay_us=200)
    model = make_model().to(device)
    inputs, targets = (tensor[hvd.rank() :: hvd.size()].contiguous().to(device) for tensor in make_data())
    optimizer = hvd.DistributedOptimizer(make_optimizer(model, kind), model.named_parameters(), **arguments)
    train(model, optimizer, inputs, targets, **how)
    return flat(model.cpu())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("time", ["eager", "lazy", "random"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_equals_the_cpu_and_one_process_with_the_whole_batch(worlds, size, time, set_to_none):
    how = {"steps": 6, "set_to_none": set_to_none}
    wanted = train_alone(**how)
    on_cpu = worlds.run(size, train_on, "cpu", "sgd", {}, how)
    for result, other in zip(worlds.run(size, train_on, DEVICE, "sgd", {}, how, time), on_cpu, strict=True):
        np.testing.assert_array_equal(result, other)
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-6)


def requests_so_far():
    return hvd.stats()["operations"]["allreduce"]["requests"]


def make_layers(count=6, width=8):
    torch.manual_seed(3)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))


def use_limits(first, others):
    from farandole.worker.gradients import device_buckets

    device_buckets.LIMITS = first, others


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_a_step_is_one_request_a_bucket_and_never_waits_for_the_gpu(worlds, compression):
    def body():
        from farandole.worker.gradients import device_buckets

        driver = FakeGpu.of_environment().load()
        driver.set_time("lazy")
        model = make_layers().to(DEVICE)
        usual = device_buckets.LIMITS
        use_limits(256, 768)  # With the space between them, a weight takes 256 bytes, and a bias 64.
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            model.named_parameters(),
            compression=getattr(hvd.Compression, compression),
        )
        inputs = torch.ones(4, 8, device=DEVICE) * (hvd.rank() + 1)
        counts = []
        for _ in range(5):
            optimizer.zero_grad()
            torch.accelerator.synchronize()
            driver.reset_counts()
            before = requests_so_far()
            model(inputs).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            optimizer.step()
            counts.append((requests_so_far() - before, driver.count("host_waits")))
        device_buckets.LIMITS = usual
        return counts[2:]

    for counts in worlds.run(2, body):
        assert counts == [(4, 0)] * 3


def powersgd_steps(device, layout=torch.contiguous_format):
    """Train with PowerSGD; return the requests and the host waits of each step, and the parameters."""
    driver = FakeGpu.of_environment().load()
    driver.set_time("lazy")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 2), torch.nn.Flatten(), *make_layers(3))
    model = model.to(device).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compression = hvd.Compression.powersgd(2)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    inputs = torch.ones(4, 8, device=device) * (hvd.rank() + 1)
    counts = []
    for _ in range(6):
        optimizer.zero_grad()
        torch.accelerator.synchronize()
        driver.reset_counts()
        before = requests_so_far()
        loss = sum(parameter.square().sum() for parameter in model[0].parameters())
        (loss * (hvd.rank() + 1) + model[2:](inputs).square().sum()).backward()
        optimizer.step()
        counts.append((requests_so_far() - before, driver.count("host_waits")))
    return counts, flat(model.cpu().to(memory_format=torch.contiguous_format))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels_last"])
def test_powersgd_sends_one_request_a_round_and_never_waits_for_the_gpu(worlds, layout):
    (_, wanted), _ = worlds.run(2, powersgd_steps, "cpu", layout)
    (counts, mine), (others, other) = worlds.run(2, powersgd_steps, DEVICE, layout)
    # The factors P of the matrices, their factors Q, and the biases.
    assert counts[2:] == others[2:] == [(3, 0)] * 4
    np.testing.assert_array_equal(mine, other)
    np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


def test_tensors_of_one_call_with_powersgd_travel_together(worlds):
    def body(device):
        torch.manual_seed(4)
        shapes = [(6, 5), (3,), (7, 2, 4), (2, 2), (9, 8)]
        tensors = [torch.randn(shape).mul(hvd.rank() + 1).to(device) for shape in shapes]
        tensors.insert(2, torch.arange(4, device=device))
        tensors.append(torch.randn(8, 8, dtype=torch.float64).to(device))
        before = requests_so_far()
        compression = hvd.Compression.powersgd(1)
        results = hvd.grouped_allreduce(tensors, name="several", op=hvd.Sum, compression=compression)
        return requests_so_far() - before, [result.cpu().numpy() for result in results]

    for size in (2, 3):
        wanted = worlds.run(size, body, "cpu")[0][1]
        for requests, results in worlds.run(size, body, DEVICE):
            # Of float32: P, Q, and what goes as it is; of float64: P and Q; and the integers.
            assert requests == 6
            for result, other in zip(results, wanted, strict=True):
                np.testing.assert_allclose(result, other, rtol=1e-4, atol=1e-5)


def test_columns_are_made_orthonormal_on_a_gpu_as_on_the_cpu(worlds):
    def body():
        from farandole.torch.collectives.powersgd import orthonormal

        torch.manual_seed(2)
        for rows, rank in ((50, 4), (7, 2), (40, 8), (5, 1)):
            columns = torch.randn(rows, rank)
            if rank > 2:
                columns[:, 1] = 0.0
                columns[:, 2] = 2 * columns[:, 0]
            assert torch.allclose(orthonormal(columns.to(DEVICE)).cpu(), orthonormal(columns), atol=1e-6)
            columns[0, 0] = math.inf
            assert orthonormal(columns.to(DEVICE)).cpu().isnan().all()

    worlds.run(1, body)


def test_gradients_that_lie_in_their_views_are_not_copied(worlds):
    def body():
        model = make_layers().to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        copied = []
        copy = torch._foreach_copy_

        def count(views, gradients):
            copied.append(len(views))
            return copy(views, gradients)

        torch._foreach_copy_ = count
        try:
            for step in range(5):
                optimizer.zero_grad(set_to_none=step == 3)
                model(torch.ones(4, 8, device=DEVICE)).sum().backward()
                optimizer.step()
        finally:
            torch._foreach_copy_ = copy
        return copied

    assert worlds.run(2, body) == [[12, 12]] * 2  # When the bucket was made, and in the step without gradients.


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        ({"backward_passes_per_step": 3}, {"passes": 3}),
        ({"groups": 2}, {}),
        ({"op": hvd.Sum}, {}),
        ({"gradient_predivide_factor": 2.0}, {}),
        ({"compression": hvd.Compression.bf16}, {}),
        ({"compression": hvd.Compression.fp16}, {}),
        ({"compression": hvd.Compression.powersgd(1)}, {}),
        ({"compression": hvd.Compression.int8}, {}),
    ],
    ids=["passes", "groups", "sum", "predivide", "bf16", "fp16", "powersgd", "int8"],
)
def test_options_give_what_they_give_on_the_cpu(worlds, arguments, how, set_to_none):
    how = {"steps": 4, "set_to_none": set_to_none, **how}
    on_cpu = worlds.run(2, train_on, "cpu", "adam", arguments, how)
    for result, other in zip(worlds.run(2, train_on, DEVICE, "adam", arguments, how), on_cpu, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-6, atol=1e-7)


def clipped(device):
    """Train with clipping, and change the passes of a step on the way; return the parameters."""
    model = make_model().to(device)
    inputs, targets = (tensor[hvd.rank() :: hvd.size()].contiguous().to(device) for tensor in make_data())
    optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
    for step in range(6):
        passes = 1 if step < 3 else 2
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(passes):
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        with optimizer.skip_synchronize():
            optimizer.step()
    return flat(model.cpu())


def test_clipping_and_another_number_of_passes(worlds):
    on_cpu = worlds.run(2, clipped, "cpu")
    for result, other in zip(worlds.run(2, clipped, DEVICE), on_cpu, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-6)


def in_two_branches(device, steps):
    """Train a model in which gradients come, stay away and are frozen; return its parameters."""
    torch.manual_seed(5)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in ("both", "one", "none", "late")}).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model["late"].requires_grad_(False)
    inputs = torch.full((2, 4), 1.0 + hvd.rank(), device=device)
    for step in range(steps):
        if step == 3:
            model["late"].requires_grad_(True)
        if step == 5:
            model["both"].requires_grad_(False)
        optimizer.zero_grad()
        output = model["both"](inputs)
        if hvd.rank() == step % 2:
            output = output + model["one"](inputs)
        (output + model["late"](inputs)).square().sum().backward()
        optimizer.step()
    if device != "cpu":
        assert torch.equal(model["none"].weight.grad.cpu(), torch.zeros(4, 4))
    return flat(model.cpu())


@pytest.mark.parametrize("size", [2, 3])
def test_unused_frozen_and_late_parameters(worlds, size):
    on_cpu = worlds.run(size, in_two_branches, "cpu", 8)
    for result, other in zip(worlds.run(size, in_two_branches, DEVICE, 8), on_cpu, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-6, atol=1e-7)


def test_gradients_of_earlier_steps_that_are_kept_stay_as_they_are(worlds):
    def body():
        model = make_layers(2, 4).to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
        kept, places = [], []
        for step in range(9):
            optimizer.zero_grad()
            (model[1](torch.ones(1, 4, device=DEVICE)) * (step + hvd.rank())).sum().backward()
            optimizer.step()
            gradient = model[1].weight.grad
            kept.append(gradient if step < 5 else (gradient.data, gradient.detach().view(-1))[step % 2])
            places.append(model[1].bias.grad.data_ptr())
            del gradient
        # Who keeps a gradient does not keep a bucket.
        assert len(set(places[1:6])) == 1
        return [tensor.cpu().unique().tolist() for tensor in kept]

    assert worlds.run(2, body) == [[[0.5 + step] for step in range(9)]] * 2


def test_a_view_has_memory_of_its_own_and_the_strides_of_its_parameter(worlds):
    def body():
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.Conv2d(4, 2, 2)).to(DEVICE)
        model = model.to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            sum((parameter.square() * (step + hvd.rank())).sum() for parameter in model.parameters()).backward()
            optimizer.step()
        for parameter in model.parameters():
            gradient = parameter.grad
            assert gradient.stride() == parameter.stride()
            assert gradient.untyped_storage().nbytes() == gradient.nbytes
        return flat(model.cpu().to(memory_format=torch.contiguous_format))

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])


def test_parameters_with_other_strides_on_a_rank_are_an_error(worlds):
    def body():
        layout = torch.channels_last if hvd.rank() else torch.contiguous_format
        model = torch.nn.Conv2d(3, 4, 2).to(DEVICE).to(memory_format=layout)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        for step in range(2):
            sum(parameter.square().sum() for parameter in model.parameters()).backward()
            if step == 1:
                with pytest.raises(hvd.HorovodInternalError, match="shape"):
                    optimizer.synchronize()
            else:
                optimizer.step()

    worlds.run(2, body)


def test_another_element_type_makes_new_buckets(worlds):
    def body():
        model = make_layers(3, 4).to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
        counts = []
        for step in range(6):
            if step == 3:
                model.double()
            optimizer.zero_grad()
            before = requests_so_far()
            inputs = torch.ones(1, 4, device=DEVICE, dtype=model[0].weight.dtype)
            (model(inputs).sum() * (1 + hvd.rank())).backward()
            optimizer.step()
            counts.append(requests_so_far() - before)
            assert model[2].bias.grad.cpu().unique().tolist() == [1.5]
        return counts

    assert worlds.run(2, body) == [[6, 1, 1, 6, 1, 1]] * 2


def test_parameters_that_are_added_get_a_bucket(worlds):
    def body():
        model = make_layers(2, 4).to(DEVICE)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model[0].parameters(), lr=0.0), [(name, p) for name, p in model.named_parameters()][:2]
        )
        counts = []
        for step in range(5):
            if step == 2:
                optimizer.add_param_group({"params": list(model[1].parameters())})
            optimizer.zero_grad()
            before = requests_so_far()
            model(torch.ones(1, 4, device=DEVICE)).sum().backward()
            optimizer.step()
            counts.append(requests_so_far() - before)
        return counts

    assert worlds.run(2, body) == [[2, 1, 3, 2, 2]] * 2


def test_a_gradient_scaler_leaves_out_the_same_steps_on_all_ranks(worlds):
    def body():
        model = make_layers(2, 4).to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0, growth_interval=100)
        for step in range(5):
            optimizer.zero_grad()
            bad = step == 3 and hvd.rank() == 1
            loss = model(torch.ones(1, 4, device=DEVICE)).sum() * (float("inf") if bad else 1.0 + hvd.rank())
            before = model[1].bias.detach().cpu()
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            assert torch.equal(model[1].bias.detach().cpu(), before) == (step == 3)
            if step != 3:
                assert model[1].bias.grad.cpu().unique().tolist() == [1.5]
        return scaler.get_scale()

    assert worlds.run(2, body) == [4.0, 4.0]


def test_a_loop_of_steps_weights_the_samples_of_uneven_batches(worlds):
    """As in elastic jobs, all samples count alike; a rank may have none in the last batch."""

    def body(device):
        model = make_model().to(device)
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        loader = hvd.elastic.ElasticLoader(torch.utils.data.TensorDataset(*make_data(10)), global_batch_size=3)
        requests = []
        for x, y in hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer):
            before = requests_so_far()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            requests.append(requests_so_far() - before)
        return flat(model.cpu()), requests

    on_cpu = worlds.run(3, body, "cpu")
    for (result, requests), (other, _) in zip(worlds.run(3, body, DEVICE), on_cpu, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-7)
        assert requests[1:] == [2] * 7  # The bucket and the ballot.


@pytest.mark.parametrize("places", [(f"{DEVICE}:0", f"{DEVICE}:1"), ("cpu", f"{DEVICE}:1")])
def test_a_model_in_several_places(worlds, places):
    def body(places):
        model = make_layers(4, 5)
        here, there = (model[:2].to(places[0]), model[2:].to(places[1]))
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        loader = hvd.elastic.ElasticLoader(torch.utils.data.TensorDataset(torch.eye(5)), global_batch_size=2)
        requests = []
        for (x,) in hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer):
            before = requests_so_far()
            optimizer.zero_grad()
            there(here(x.to(places[0])).to(places[1])).square().sum().backward()
            optimizer.step()
            requests.append(requests_so_far() - before)
        return flat(model.cpu()), requests[1]

    on_cpu = worlds.run(2, body, ("cpu", "cpu"))
    for (result, requests), (other, _) in zip(worlds.run(2, body, places), on_cpu, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-7)
        assert requests == (6 if "cpu" in places else 3)  # With the ballot.


def test_loaded_optimizer_state_is_beside_its_parameter_on_one_of_several_gpus(worlds):
    def body():
        from farandole.torch.optimizer_state import load_in_place

        parameters = [torch.nn.Parameter(torch.ones(3, device=f"{DEVICE}:{index}")) for index in range(2)]
        optimizer = torch.optim.Adam(parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = optimizer.state_dict()
        for each in state["state"].values():
            each["exp_avg"] = each["exp_avg"].to(f"{DEVICE}:0")
        load_in_place(optimizer, state)
        optimizer.step()
        assert [optimizer.state[each]["exp_avg"].device.index for each in parameters] == [0, 1]
        assert {optimizer.state[each]["step"].device.type for each in parameters} == {"cpu"}

    worlds.run(1, body)


def test_a_rank_that_has_joined(worlds):
    def body():
        model = make_layers(2, 4).to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
        found = []
        for _ in range(2 + 2 * hvd.rank()):
            optimizer.zero_grad()
            model(torch.ones(1, 4, device=DEVICE)).sum().backward()
            optimizer.step()
            found.append(model[1].bias.grad.cpu().unique().tolist())
        hvd.join()
        return found

    assert worlds.run(2, body) == [[[1.0]] * 2, [[1.0]] * 2 + [[0.5]] * 2]


def test_gradients_that_require_gradients(worlds):
    def body():
        model = make_layers(2, 4).to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 4, device=DEVICE)).sum() * (step + hvd.rank())
            loss.backward(create_graph=True)
            optimizer.step()
            assert not model[1].bias.grad.requires_grad
            assert model[1].bias.grad.cpu().unique().tolist() == [step + 0.5]

    worlds.run(2, body)
