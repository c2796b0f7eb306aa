"""SyncBatchNorm against the plain batch normalisation of all ranks' batches joined."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import farandole.torch as hvd

FEATURES = 3
# What each of up to three ranks gives; the second set has a rank without any.
UNEVEN, EMPTY = (5, 2, 4), (6, 0, 3)


def make_batches(shares, shape=(4,), dtype=torch.float64):
    """Return the batches of all ranks, the same everywhere; far from zero, where a careless variance is wrong."""
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(rows, FEATURES, *shape, generator=generator, dtype=torch.float64) * 2 + 30).to(dtype)
        for rows in shares[: hvd.size()]
    ]


def same_start(layer, seed=5):
    """Give a layer's parameters random values, the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layer


def passes(layer, batch, weights):
    """Return output and gradients of one forward and backward pass: output, then batch, then parameters."""
    batch = batch.clone().requires_grad_()
    output = layer(batch)
    (output * weights).sum().backward()
    return [output.detach(), batch.grad], [parameter.grad for parameter in layer.parameters()]


def compare(options, shares, shape, dtype, tolerance):
    """Compare two training steps with those of a plain layer that has everything."""
    rank = hvd.rank()
    synchronized = same_start(hvd.SyncBatchNorm(FEATURES, dtype=dtype, **options))
    kinds = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}
    plain = same_start(kinds[len(shape)](FEATURES, dtype=dtype, **options))
    for _ in range(2):
        batches = make_batches(shares, shape, dtype)
        everything = torch.cat(batches)
        weights = torch.randn(everything.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        rows = [len(batch) for batch in batches]
        ours, our_parameters = passes(synchronized, batches[rank], weights.split(rows)[rank])
        theirs, their_parameters = passes(plain, everything, weights)
        for mine, whole in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, whole.split(rows)[rank], rtol=tolerance, atol=tolerance)
        for mine, whole in zip(our_parameters, their_parameters, strict=True):
            torch.testing.assert_close(hvd.allreduce(mine, op=hvd.Sum), whole, rtol=tolerance, atol=tolerance)
        for mine, whole in zip(synchronized.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(mine, whole, rtol=tolerance, atol=tolerance)
        synchronized.zero_grad()
        plain.zero_grad()
    synchronized.eval()
    plain.eval()
    if options.get("track_running_stats", True):
        # Without a rank's partner: evaluation asks nobody.
        if rank == 0:
            torch.testing.assert_close(synchronized(everything), plain(everything))
    else:
        torch.testing.assert_close(synchronized(batches[rank]), plain(everything).split(rows)[rank])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}, {"eps": 0.5, "momentum": 0.3}],
    ids=str,
)
def test_equals_the_plain_layer_with_the_whole_batch(worlds, size, options):
    worlds.run(size, compare, options, UNEVEN, (4,), torch.float64, 1e-11)


@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("shares", [UNEVEN, EMPTY], ids=str)
def test_shapes_and_empty_batches(worlds, shape, shares):
    worlds.run(3, compare, {}, shares, shape, torch.float64, 1e-11)


def test_single_precision(worlds):
    worlds.run(3, compare, {}, UNEVEN, (4, 4), torch.float32, 2e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("wide_parameters", [True, False])
def test_half_precision(worlds, dtype, wide_parameters):
    """16-bit batches, with parameters of 32 bits (as under autocast) or 16."""

    def body(dtype, wide_parameters):
        dtype = getattr(torch, dtype)
        layer = same_start(hvd.SyncBatchNorm(FEATURES, dtype=torch.float32 if wide_parameters else dtype))
        plain = same_start(torch.nn.BatchNorm1d(FEATURES))
        batches = make_batches(UNEVEN, (8,), dtype)
        rows = [len(batch) for batch in batches]
        everything = torch.cat(batches)
        weights = torch.randn(everything.shape, generator=torch.Generator().manual_seed(9))
        (output, gradient), parameters = passes(layer, batches[hvd.rank()], weights.split(rows)[hvd.rank()].to(dtype))
        (wanted, wanted_gradient), _ = passes(plain, everything.float(), weights)
        assert output.dtype == gradient.dtype == dtype
        assert all(each.dtype == layer.weight.dtype for each in parameters)
        close = {"rtol": 0.05, "atol": 0.05}
        torch.testing.assert_close(output.float(), wanted.split(rows)[hvd.rank()], **close)
        torch.testing.assert_close(gradient.float(), wanted_gradient.split(rows)[hvd.rank()], **close)

    worlds.run(2, body, dtype, wide_parameters)


def test_several_at_once_and_a_second_backward(worlds):
    """Two layers on the way of one loss, and a graph that is walked twice."""

    def body():
        layers = [same_start(hvd.SyncBatchNorm(FEATURES).double(), seed) for seed in (1, 2)]
        batch = make_batches(UNEVEN)[hvd.rank()].requires_grad_()
        loss = (layers[0](batch) * layers[1](batch)).pow(2).sum()
        loss.backward(retain_graph=True)
        once = batch.grad.clone()
        loss.backward()
        torch.testing.assert_close(batch.grad, 2 * once)

    worlds.run(2, body)


def test_one_rank_may_have_more_modules(worlds):
    """A rank may construct what the others do not have, such as an averaged model, and load what they construct."""

    def body():
        batch = make_batches(UNEVEN)[hvd.rank()]
        layers = [hvd.SyncBatchNorm(FEATURES).double()]
        if hvd.rank() == 0:
            hvd.SyncBatchNorm(FEATURES)
        layers.append(hvd.SyncBatchNorm(FEATURES).double())
        wanted = [layer(batch) for layer in layers]
        if hvd.rank() == 0:
            layers = [pickle.loads(pickle.dumps(layer)) for layer in reversed(layers)]
        else:
            layers = [hvd.SyncBatchNorm(FEATURES).double() for _ in layers]
        for layer, output in zip(layers, wanted, strict=True):
            torch.testing.assert_close(layer(batch), output)

    worlds.run(2, body)


def test_the_gradient_of_the_gradient(worlds):
    """As gradient penalties need it."""

    def penalty(layer, batch, total):
        batch = batch.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((layer(batch) ** 3).sum(), batch, create_graph=True)
        total(gradient.pow(2).sum()).backward()
        return batch.grad, [parameter.grad for parameter in layer.parameters()]

    def body():
        batches = make_batches(UNEVEN)
        rows = [len(batch) for batch in batches]
        layer = same_start(hvd.SyncBatchNorm(FEATURES).double())
        ours, our_parameters = penalty(layer, batches[hvd.rank()], lambda loss: loss)
        plain = same_start(torch.nn.BatchNorm1d(FEATURES).double())
        theirs, their_parameters = penalty(plain, torch.cat(batches), lambda loss: loss)
        torch.testing.assert_close(ours, theirs.split(rows)[hvd.rank()], rtol=1e-6, atol=1e-6)
        for mine, whole in zip(our_parameters, their_parameters, strict=True):
            torch.testing.assert_close(hvd.allreduce(mine, op=hvd.Sum), whole, rtol=1e-6, atol=1e-6)

    worlds.run(2, body)


def test_horovods_own_example(worlds):
    """What Horovod promises: outputs, running statistics, and gradients averaged over the ranks."""

    def body():
        rank, size = hvd.rank(), hvd.size()
        rows = torch.arange(size).reshape(-1, 1, 1) * torch.arange(1, 5).reshape(1, -1, 1)
        everything = (rows + torch.arange(2)).float()
        layer, plain = hvd.SyncBatchNorm(num_features=4), torch.nn.BatchNorm1d(num_features=4)
        mine, whole = everything[rank : rank + 1].clone().requires_grad_(), everything.clone().requires_grad_()
        ours, theirs = layer(mine), plain(whole)
        torch.testing.assert_close(ours, theirs[rank : rank + 1], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(layer.running_var, plain.running_var, rtol=1e-6, atol=1e-6)
        ours.sum().backward()
        theirs.mean(dim=0).sum().backward()
        for name in ("weight", "bias"):
            torch.testing.assert_close(
                hvd.allreduce(getattr(layer, name).grad), getattr(plain, name).grad, rtol=1e-5, atol=1e-5
            )

    worlds.run(3, body)


def test_a_process_set(worlds):
    """Members share among themselves; the rank outside is alone."""

    def body():
        pair = hvd.add_process_set([0, 2])
        layer = hvd.SyncBatchNorm(1, affine=False, process_set=pair)
        batch = torch.tensor([[0.0], [2.0]]) + 4 * hvd.rank()
        output = layer(batch)
        copied = copy.deepcopy(layer)
        torch.testing.assert_close(copied(batch), output)
        wanted = {0: [-1.25, -0.75], 1: [-1.0, 1.0], 2: [0.75, 1.25]}[hvd.rank()]
        scale = {0: 4 / 17**0.5, 1: 1.0, 2: 4 / 17**0.5}[hvd.rank()]
        torch.testing.assert_close(output.flatten(), torch.tensor(wanted) * scale, rtol=1e-4, atol=1e-4)
        hvd.barrier()
        hvd.remove_process_set(pair)
        try:
            layer(batch)
        except ValueError as error:
            assert "has not been registered" in str(error)
        else:
            raise AssertionError("a process set that was removed went through")

    worlds.run(3, body)


def test_conversion(worlds):
    """Everything is taken over, at any depth; what the optimizer has stays what is trained."""

    def body():
        shared = torch.nn.BatchNorm2d(4, eps=0.1, momentum=None)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 1),
            shared,
            torch.nn.ModuleDict({"inner": torch.nn.Sequential(torch.nn.BatchNorm3d(4, affine=False)), "twice": shared}),
            torch.nn.InstanceNorm2d(4),
        ).eval()
        shared.weight.requires_grad_(False)
        state = copy.deepcopy(model.state_dict())
        parameters = list(model.parameters())
        converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        assert converted is model
        first = model[1]
        assert isinstance(first, hvd.SyncBatchNorm) and first is model[2]["twice"]
        assert isinstance(model[2]["inner"][0], hvd.SyncBatchNorm)
        assert (first.eps, first.momentum, first.training) == (0.1, None, False)
        assert not first.weight.requires_grad and first.bias.requires_grad
        assert all(ours is theirs for ours, theirs in zip(model.parameters(), parameters, strict=True))
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name]) and value.device.type == "cpu"
        assert isinstance(hvd.convert_sync_batchnorm(torch.nn.BatchNorm1d(2)), hvd.SyncBatchNorm)
        assert hvd.convert_sync_batchnorm(first) is first
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        restored = torch.load(file, weights_only=False)
        assert restored[1].process_set is hvd.global_process_set
        try:
            hvd.convert_sync_batchnorm(torch.nn.LazyBatchNorm1d())
        except ValueError as error:
            assert "one batch" in str(error)
        else:
            raise AssertionError("a lazy layer was converted")

    worlds.run(1, body)


def test_training_equals_one_process(worlds):
    """A network with the layer, DistributedOptimizer and uneven batches."""

    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv1d(FEATURES, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Flatten()
        ).double()

    def train(model, optimizer, batch):
        for _ in range(4):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
        return [value.numpy() for value in model.state_dict().values()]

    def body():
        model = hvd.convert_sync_batchnorm(make())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
        ours = train(model, optimizer, make_batches(UNEVEN)[hvd.rank()])
        plain = make()
        theirs = train(
            plain, torch.optim.SGD(plain.parameters(), lr=0.002, momentum=0.9), torch.cat(make_batches(UNEVEN))
        )
        for mine, whole in zip(ours, theirs, strict=True):
            torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(whole), rtol=1e-9, atol=1e-9)

    worlds.run(2, body)


def test_wrong_batches(worlds):
    def body():
        layer = hvd.SyncBatchNorm(2)
        for wrong, words in ((torch.ones(2), "2D"), (torch.ones(4, 3), "features"), (torch.ones(0, 2), "1 value")):
            try:
                layer(wrong)
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{wrong} went through")

    worlds.run(2, body)
