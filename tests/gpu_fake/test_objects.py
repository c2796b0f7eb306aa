"""Objects with tensors of a GPU: they arrive on the receiver's own GPU."""

from __future__ import annotations

import torch
from fake_gpu_device import DEVICE

import farandole.torch as hvd


def test_tensors_in_objects_arrive_on_the_receivers_gpu(worlds):
    def body():
        rank = hvd.rank()
        torch.accelerator.set_device_index(rank)
        shared = torch.nn.Parameter(torch.full((2,), float(rank), device=f"{DEVICE}:{rank}"))
        own = {"parameter": shared, "again": [shared], "host": torch.ones(1), "double": shared.detach() * 2}
        sent = hvd.broadcast_object(own, root_rank=1)
        gathered = hvd.allgather_object(own["double"])
        assert sent["again"][0] is sent["parameter"]
        assert isinstance(sent["parameter"], torch.nn.Parameter)
        assert sent["host"].device.type == "cpu"
        devices = {str(each.device) for each in (sent["parameter"], sent["double"], *gathered)}
        return devices, sent["double"].tolist(), [each.tolist() for each in gathered]

    for rank, found in enumerate(worlds.run(2, body)):
        assert found == ({f"{DEVICE}:{rank}"}, [2.0, 2.0], [[0.0, 0.0], [2.0, 2.0]])
