"""Trains a line, elastically, in the style of Horovod's examples. Every worker prints what it does.

    horovodrun -np 2 --min-np 1 --host-discovery-script ./hosts.sh python horovod_style.py --epochs 5

Lines begin with a word: `began` after `init`, `epoch` when one has ended, `reset` in every new world, `trained` at the
end. Each `epoch` line says how many optimizer steps the parameters have behind them.
"""

import argparse
import os
import signal
import time

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=256)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--batches-per-commit", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--batch-wait", type=float, default=0.0, help="seconds that each batch takes longer")
parser.add_argument("--until", help="train on after the last epoch until there is this file")
parser.add_argument("--log", help="file that rank 0 adds a line to after each epoch")
parser.add_argument("--news-after", type=int, nargs="*", default=[], help="epochs after which rank 0 waits for hosts")
parser.add_argument("--fails", nargs="*", default=[], help="EPOCH:WORKER:HOW, with HOW one of raise, kill")
args = parser.parse_args()

hvd.init()
started_as = int(os.environ.get("HOROVOD_RANK", 0))
torch.manual_seed(hvd.rank())

generator = torch.Generator().manual_seed(7)
features = torch.randn(args.samples, 3, generator=generator)
targets = features @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.25
dataset = TensorDataset(features, targets)

# Horovod's scripts begin so. In a newcomer they change nothing: there the state does it.
first_epoch = hvd.broadcast_object(0, name="first_epoch")
model = torch.nn.Linear(3, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)


def tell(word, **facts):
    facts = {"pid": os.getpid(), "worker": started_as, "rank": hvd.rank(), "size": hvd.size(), **facts}
    print(word, *(f"{name}={value}" for name, value in facts.items()), flush=True)


def fail_as_told(state):
    if f"{state.epoch}:{started_as}:raise" in args.fails:
        raise RuntimeError(f"worker {started_as} was told to fail")
    if f"{state.epoch}:{started_as}:kill" in args.fails:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_news(state):
    # As Horovod's users do who want to see a change of hosts before the next epoch.
    end = time.monotonic() + 60
    while state._host_messages.empty():
        if time.monotonic() > end:
            raise TimeoutError("nothing was heard of other hosts")
        time.sleep(0.1)


def is_over(state):
    if state.epoch < args.epochs:
        return False
    found = args.until is None or os.path.exists(args.until)
    return bool(hvd.allreduce(torch.tensor(float(found)), op=hvd.Max, name="over"))


def train_batch(state, features, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(features), targets)
    loss.backward()
    optimizer.step()
    state.steps += 1
    return loss.item()


@hvd.elastic.run
def train(state):
    state.calls += 1
    while not is_over(state):
        fail_as_told(state)
        loss = 0.0  # An epoch may have nothing left to train when a new world goes on with it.
        for index, batch in enumerate(loader):
            loss = train_batch(state, *batch)
            state.sampler.record_batch(index, args.batch_size)
            time.sleep(args.batch_wait)
            if (index + 1) % args.batches_per_commit == 0:
                state.commit()
        loss = hvd.allreduce(torch.tensor(loss), name="loss").item()
        tell("epoch", epoch=state.epoch, steps=state.steps, loss=f"{loss:.6f}", lr=f"{lr():g}")
        if hvd.rank() == 0 and args.log:
            with open(args.log, "a") as log:
                host = os.environ.get("HOROVOD_HOSTNAME")
                log.write(f"{state.epoch} {started_as} {hvd.size()} {host} {state.calls}\n")
        if hvd.rank() == 0 and state.epoch in args.news_after:
            wait_for_news(state)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()
    return state.steps


def lr():
    return optimizer.param_groups[0]["lr"]


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = args.lr * hvd.size()
    tell("reset", epoch=state.epoch, steps=state.steps)


state = hvd.elastic.TorchState(model, optimizer, epoch=first_epoch, steps=0, calls=0, sampler=sampler)
state.register_reset_callbacks([on_state_reset])
tell("began", local_rank=hvd.local_rank(), elastic=os.environ.get("HOROVOD_ELASTIC"))
steps = train(state)
digest = ",".join(f"{value:.9g}" for value in torch.cat([model.weight.flatten(), model.bias]).tolist())
tell("trained", steps=steps, parameters=digest)
