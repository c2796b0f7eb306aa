"""`horovod.mxnet` where MXNet is installed: the names and signatures that scripts rely on."""

from __future__ import annotations

import textwrap

import drop_in
import pytest
from nurseries import Nurseries

SIGNATURES = {
    "allreduce": "tensor average name priority prescale_factor postscale_factor process_set op",
    "allreduce_": "tensor average name priority prescale_factor postscale_factor process_set op",
    "grouped_allreduce": "tensors average name priority prescale_factor postscale_factor process_set op",
    "grouped_allreduce_": "tensors average name priority prescale_factor postscale_factor process_set op",
    "allgather": "tensor name priority process_set",
    "grouped_allgather": "tensors name priority process_set",
    "broadcast": "tensor root_rank name priority process_set",
    "broadcast_": "tensor root_rank name priority process_set",
    "alltoall": "tensor splits name priority process_set",
    "reducescatter": "tensor op name priority process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors op name priority process_set prescale_factor postscale_factor",
    "broadcast_parameters": "params root_rank prefix",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name process_set",
    "DistributedOptimizer": "optimizer gradient_predivide_factor num_groups process_set",
    "DistributedTrainer": "params optimizer optimizer_params compression gradient_predivide_factor prefix num_groups "
    "process_set",
}


@pytest.fixture
def mxnet(nurseries: Nurseries) -> None:
    """Skip the test where MXNet is not installed."""
    assert nurseries["mxnet"]


def python(code: str) -> str:
    """Run code with warnings as they are: MXNet uses names that NumPy warns of."""
    return drop_in.python(f"import warnings; warnings.simplefilter('ignore')\n{textwrap.dedent(code)}").stdout


def test_functions_take_the_arguments_of_horovods_in_its_order(mxnet: None) -> None:
    code = f"""
        import horovod.mxnet as hvd, inspect
        for name, wanted in {SIGNATURES}.items():
            had = [each for each in inspect.signature(getattr(hvd, name)).parameters]
            assert had[:len(wanted.split())] == wanted.split(), (name, had)
        print("as they are")
    """
    assert python(code) == "as they are\n"


def test_modules_are_farandoles(mxnet: None) -> None:
    code = """
        import horovod.mxnet as hvd, farandole.mxnet
        from horovod.mxnet.mpi_ops import allreduce, rank, size, Average
        from horovod.mxnet.functions import allgather_object, broadcast_object
        from horovod.mxnet.compression import Compression
        assert hvd is farandole.mxnet and allreduce is hvd.allreduce and Compression is hvd.Compression
        assert broadcast_object is hvd.broadcast_object
        hvd.init()
        import mxnet as mx
        print(rank(), size(), hvd.allreduce(mx.nd.ones((2,))).asnumpy().tolist())
    """
    assert python(code) == "0 1 [1.0, 1.0]\n"
