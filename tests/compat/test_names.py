"""`import horovod.X` gives farandole's own modules to any importer, and says plainly which parts are missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import drop_in
import pytest

import farandole.torch
import horovod
from farandole.compat.aliases import HOMES

# What scripts and Horovod's own tests import, and whose it is.
SAME = {
    "horovod.keras": "farandole.keras",
    "horovod.keras.callbacks": "farandole.keras.callbacks",
    "horovod.keras.elastic": "farandole.keras.elastic",
    "horovod.tensorflow.functions": "farandole.compat.tensorflow.functions",
    "horovod.mxnet": "farandole.mxnet",
    "horovod.mxnet.compression": "farandole.mxnet.compression",
    "horovod.tensorflow.keras": "farandole.keras",
    "horovod.tensorflow.mpi_ops": "farandole.compat.tensorflow.mpi_ops",
    "horovod.tensorflow.util": "farandole.compat.tensorflow.util",
    "horovod.tensorflow.keras.callbacks": "farandole.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "farandole.keras.elastic",
    "horovod.torch": "farandole.torch",
    "horovod.torch.compression": "farandole.torch.compression",
    "horovod.torch.optimizer": "farandole.torch.optimizer",
    "horovod.torch.mpi_ops": "farandole.compat.mpi_ops",
    "horovod.torch.functions": "farandole.compat.functions",
    "horovod.torch.elastic": "farandole.torch.elastic",
    "horovod.torch.elastic.state": "farandole.torch.elastic.state",
    "horovod.torch.elastic.sampler": "farandole.torch.elastic.sampler",
    "horovod.common.elastic": "farandole.compat.elastic",
    "horovod.common.exceptions": "farandole.compat.exceptions",
    "horovod.common.util": "farandole.compat.support",
    "horovod.data": "farandole.compat.data",
    "horovod.ray": "farandole.compat.ray",
    "horovod.ray.elastic_v2": "farandole.compat.ray.elastic_v2",
    "horovod.runner": "farandole.compat.runner",
    "horovod.runner.launch": "farandole.compat.runner.launch",
    "horovod.runner.gloo_run": "farandole.compat.runner.gloo_run",
    "horovod.runner.common.util.hosts": "farandole.compat.runner.hosts",
}


def skip_without_framework(name: str) -> None:
    """Skip a test of a module whose framework is not installed."""
    for framework in ("tensorflow", "keras", "mxnet"):
        if framework in name and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")


def test_python_m_finds_the_program_s_own_name() -> None:
    theirs, ours = (importlib.util.find_spec(f"{name}.runner.launch") for name in ("horovod", "farandole.compat"))
    assert theirs is not None
    assert ours is not None
    assert theirs.origin == ours.origin


@pytest.mark.parametrize(("theirs", "ours"), SAME.items())
def test_a_module_is_the_same_object_under_both_names(theirs: str, ours: str) -> None:
    skip_without_framework(theirs)
    assert importlib.import_module(theirs) is importlib.import_module(ours)
    # The import must not have left a wrong word about itself in our module.
    specification = sys.modules[ours].__spec__
    assert specification is not None and specification.name == ours


@pytest.mark.parametrize("name", HOMES)
def test_every_name_can_be_imported(name: str) -> None:
    skip_without_framework(name)
    assert importlib.util.find_spec(name) is not None
    importlib.import_module(name)


def test_whichever_is_imported_first() -> None:
    both = ("horovod.torch", "farandole.torch")
    for first, second in (both, both[::-1]):
        code = f"import {first}, {second}, horovod.torch as a, farandole.torch as b; assert a is b; print(a.__name__)"
        assert drop_in.python(code).stdout == "farandole.torch\n"


def test_scripts_reach_modules_as_attributes() -> None:
    code = """
        import horovod.torch as hvd
        from horovod.torch import mpi_ops
        import horovod.torch.optimizer
        assert hvd.mpi_ops is mpi_ops and hvd.functions.broadcast_object is hvd.broadcast_object
        assert horovod.torch.optimizer is hvd.optimizer
        import horovod.common.util, horovod
        horovod.common.util.gloo_built()
        horovod.runner.run is horovod.run
    """
    drop_in.python(code)


def test_mpi_ops_has_the_names_that_scripts_import() -> None:
    mpi_ops = importlib.import_module("horovod.torch.mpi_ops")
    hvd = farandole.torch
    for name in ["Average", "Sum", "Adasum", "Min", "Max", "Product", "init", "shutdown", "rank", "local_size", "poll"]:
        assert getattr(mpi_ops, name) is getattr(hvd, name)
    for name in ["allreduce_async_", "allgather_async", "broadcast_async_", "synchronize", "gloo_built"]:
        assert getattr(mpi_ops, name) is getattr(hvd, name)
    assert mpi_ops.is_homogeneous is mpi_ops._basics.is_homogeneous
    assert "is_homogeneous" in dir(mpi_ops) and "allreduce" in dir(mpi_ops)
    with pytest.raises(AttributeError, match=r"horovod\.torch\.mpi_ops"):
        _ = mpi_ops.no_such_name


def test_tensorflow_has_the_names_that_scripts_and_horovods_tests_use() -> None:
    pytest.importorskip("tensorflow")
    code = """
        import horovod.tensorflow as hvd
        from horovod.tensorflow import mpi_ops, util
        from horovod.tensorflow.functions import broadcast_object
        from horovod.tensorflow.util import _executing_eagerly
        assert hvd.mpi_ops is mpi_ops and hvd.util is util and hvd._executing_eagerly is _executing_eagerly
        assert mpi_ops.rank is hvd.rank and mpi_ops.Adasum is hvd.Adasum and "allgather" in dir(mpi_ops)
        assert mpi_ops.is_homogeneous is mpi_ops._basics.is_homogeneous
        assert hvd.broadcast_object is broadcast_object
        assert [hvd.check_num_rank_power_of_2(number) for number in (0, 1, 2, 3, 4)] == [False, True, True, False, True]
        assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
        assert hvd.split_list([1, 2, 3], 2) == [[1, 2], [3]] and not hvd.gpu_available("mxnet")
        try:
            mpi_ops.no_such_name
        except AttributeError as error:
            print(error)
        import tensorflow as tf

        hvd.init()
        one = tf.Variable([1.0, 2.0])
        for reduced in (hvd._allreduce(one), hvd._grouped_allreduce([one])[0], hvd._reducescatter(one)):
            assert reduced.numpy().tolist() == [1.0, 2.0]
        assert hvd._grouped_reducescatter([one])[0].numpy().tolist() == [1.0, 2.0]
        in_order = (one, None, hvd.Sum, False, hvd.global_process_set, 2.0)
        for reduced in (hvd._reducescatter(*in_order), hvd._allreduce(one, None, hvd.Average, 2.0)):
            assert reduced.numpy().tolist() == [2.0, 4.0]

        calls = []
        cached = hvd._cache(lambda *given: calls.append(given) or len(calls))
        with tf.Graph().as_default():
            assert not _executing_eagerly() and cached(1) == 1
        assert _executing_eagerly() and [cached(1), cached(1), cached(2)] == [2, 2, 3]
        assert hvd._make_subgraph(lambda: 3 * one)().numpy().tolist() == [3.0, 6.0]
        kept = hvd.refs_to_vars(hvd.vars_to_refs([one, [one]]))
        assert kept[0] is one and kept[1][0] is one and hash(hvd.vars_to_refs([one, [one]]))
    """
    done = drop_in.python(code, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.stdout == "module 'horovod.tensorflow.mpi_ops' has no attribute 'no_such_name'\n"


def test_optimizers_have_the_names_that_examples_of_keras_2_ask_for() -> None:
    for framework in ("tensorflow", "keras"):
        pytest.importorskip(framework)
    code = """
        import tensorflow as tf
        import horovod.tensorflow as hvd
        import horovod.tensorflow.keras as hvd_keras

        hvd.init()
        weight = tf.keras.Variable(1.0)
        for optimizer in (tf.optimizers.Adam(0.5), hvd_keras.DistributedOptimizer(tf.optimizers.Adam(0.5))):
            optimizer.build([weight])
            assert len(optimizer.variables()) == len(optimizer.variables) > 2
            assert float(optimizer.lr.numpy()) == tf.keras.backend.get_value(optimizer.lr) == 0.5
            optimizer.lr.assign(0.25)
            assert float(optimizer.learning_rate.numpy()) == 0.25
            tf.keras.backend.set_value(optimizer.lr, 0.125)
            assert float(optimizer.learning_rate.numpy()) == 0.125
            optimizer.lr = 1.0
            assert float(optimizer.learning_rate.numpy()) == 1.0
        scaling = tf.keras.optimizers.LossScaleOptimizer(tf.optimizers.SGD(0.5))
        assert len(scaling.variables()) == len(scaling.variables)

        class Counting(hvd_keras.elastic.CommitStateCallback):
            commits = 0

            def commit(self):
                self.commits += 1
                super().commit()

        counting = Counting(hvd_keras.elastic.ObjectState(lambda each: each, hvd.rank), 2)
        for batch in range(4):
            counting.on_batch_end(batch)
        counting.on_epoch_end(0)
        print(counting.commits)
    """
    assert drop_in.python(code, TF_CPP_MIN_LOG_LEVEL="3").stdout == "3\n"


def test_basics_answer_as_the_functions_do() -> None:
    basics = importlib.import_module("horovod.common.basics").HorovodBasics(__file__, "mpi_lib_v2")
    assert [basics.Average, basics.Sum, basics.Adasum, basics.Min, basics.Max, basics.Product] == [0, 1, 2, 3, 4, 5]
    assert not basics.is_initialized()
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
        basics.rank()
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
        basics._get_process_set_ids_and_ranks()
    with pytest.raises(ValueError, match="MPI"):
        basics._comm_process_set_id("a communicator")
    basics.init()
    try:
        assert (basics.rank(), basics.size(), basics.local_size(), basics.cross_size()) == (0, 1, 1, 1)
        assert basics._get_process_set_ids_and_ranks() == {0: [0]}
    finally:
        basics.shutdown()


def test_built_parts_are_known_before_init() -> None:
    hvd = farandole.torch
    assert not hvd.is_initialized()
    assert (hvd.gloo_built(), hvd.gloo_enabled()) == (True, True)
    assert (hvd.mpi_built(), hvd.mpi_enabled()) == (True, False)
    others = (
        "nccl_built",
        "ddl_built",
        "ccl_built",
        "rocm_built",
        "sycl_built",
    )
    assert not any(getattr(hvd, name)() for name in others)
    assert hvd.cuda_built()
    assert isinstance(hvd.nccl_built(), int)  # A version number, as scripts compare it.
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("horovod.spark.data_loaders", "the estimators are horovod.spark.torch"),
        ("horovod._keras.callbacks", "horovod.keras is there"),
        ("horovod.tensorflow.gradient_aggregation", "backward_passes_per_step"),
        ("horovod.runner.http.http_server", "inside of Horovod's launcher"),
        ("horovod.runner.common.service.task_service", "inside of Horovod's launcher"),
        ("horovod.runner.elastic.discovery", "inside of Horovod's launcher"),
        ("horovod.runner.util.threads", "inside of Horovod's launcher"),
        ("horovod.runner.common.util.secret", "inside of Horovod's launcher"),
    ],
)
def test_missing_parts_are_reported(name: str, why: str) -> None:
    with pytest.raises(ImportError, match=why):
        importlib.import_module(name)
    assert name not in sys.modules


@pytest.mark.parametrize("framework", ["tensorflow", "keras", "mxnet"])
def test_a_missing_framework_is_reported_with_what_to_install(framework: str) -> None:
    done = drop_in.python(
        f"""
        import importlib.util
        find_spec = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "{framework}" else find_spec(name, *more)
        try:
            import horovod.{framework}
        except ModuleNotFoundError as error:
            print(error.name, "|", error)
        """
    )
    assert done.stdout.startswith(f"{framework} | farandole.{framework} needs ")
    assert f"pip install 'farandole[{framework}]'" in done.stdout


def test_elastic_names() -> None:
    from horovod.torch import elastic

    hvd = importlib.import_module("horovod.torch")
    assert hvd.elastic is elastic
    for name in ["run", "State", "ObjectState", "TorchState", "ElasticSampler", "steps"]:
        assert name in elastic.__all__ and callable(getattr(elastic, name))
    state = importlib.import_module("horovod.torch.elastic.state")
    for name in ["TorchState", "StateHandler", "ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler"]:
        assert getattr(state, name).__module__ == "farandole.torch.elastic.state"
    assert state.get_handler_registry()[0][1] is state.ModelStateHandler
    exceptions = importlib.import_module("horovod.common.exceptions")
    common = importlib.import_module("horovod.common.elastic")
    for name in ["HorovodInternalError", "HostsUpdatedInterrupt"]:
        assert getattr(exceptions, name) is getattr(elastic, name) is getattr(common, name)
    assert common.State is elastic.State and common.ObjectState is elastic.ObjectState


def test_elastic_is_loaded_when_it_is_asked_for() -> None:
    code = """
        import horovod.torch as hvd, sys
        before = "farandole.torch.elastic" in sys.modules
        print(before, hvd.elastic.TorchState.__name__)
    """
    assert drop_in.python(code).stdout == "False TorchState\n"
    # What the launcher may import, too.
    loaded = drop_in.python("import horovod.common.elastic, sys; print(*sys.modules)").stdout.split()
    assert not {"torch", "numpy"} & set(loaded)


def test_a_module_that_horovod_does_not_have_is_an_ordinary_mistake() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("horovod.torch.no_such_module")
    # What Horovod has, but not farandole, nor the package that it would be in.
    with pytest.raises(ModuleNotFoundError, match=r"horovod\.runner\.util\.cache"):
        importlib.import_module("horovod.runner.util.cache")
    assert importlib.util.find_spec("horovod.runner.common.util.codec") is None
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        from horovod.torch import no_such_name  # noqa: F401
    assert importlib.util.find_spec("horovod.no_such_module") is None


def test_the_package_itself() -> None:
    numbers = [int(number) for number in horovod.__version__.split(".")]
    assert len(numbers) == 3 and numbers > [0, 28, 1]
    assert callable(horovod.run)
    with pytest.raises(AttributeError, match=r"'horovod' has no attribute 'init': .* `import horovod.torch as hvd`"):
        _ = horovod.init


def test_importing_it_loads_no_launcher_and_no_framework() -> None:
    loaded = drop_in.python("import horovod, sys; print(*sys.modules)").stdout.split()
    assert not {"torch", "numpy", "asyncio", "msgspec", "yaml", "farandole.control.launcher"} & set(loaded)


# --- other processes ------------------------------------------------------------------------------------------------


def test_pickles_go_both_ways() -> None:
    hvd = importlib.import_module("horovod.torch")
    for dumps in (pickle.dumps, cloudpickle.dumps):
        for thing in (hvd.allreduce, hvd.ProcessSet, hvd.HorovodInternalError, hvd.Compression.fp16):
            assert pickle.loads(dumps(thing)) is thing
    assert pickle.loads(cloudpickle.dumps(hvd)) is farandole.torch
    # What was pickled where only one name had been imported can be read where only the other has.
    names = ("horovod.common.process_sets", "farandole.worker.core.group")
    for written, read in (names, names[::-1]):
        code = (
            f"import cloudpickle, {written} as it; print(cloudpickle.dumps((it.ProcessSet, it.ProcessSet([0]))).hex())"
        )
        payload = drop_in.python(code).stdout.strip()
        code = f"""
            import pickle, {read} as it
            kind, process_set = pickle.loads(bytes.fromhex("{payload}"))
            assert kind is it.ProcessSet and type(process_set) is kind and process_set.ranks == [0]
        """
        drop_in.python(code)


def names_in_child(expected: str) -> None:
    """Check the names; runs in a child process."""
    import horovod.torch as hvd
    import horovod.torch.mpi_ops

    assert hvd.__name__ == expected
    assert sys.modules["horovod.torch"] is sys.modules["farandole.torch"] is hvd
    assert horovod.torch.mpi_ops.ProcessSet is hvd.ProcessSet


def test_forked_children_have_the_same_modules() -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            names_in_child("farandole.torch")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_spawned_children_have_the_same_modules(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("""if True:
        import multiprocessing, sys
        import horovod.torch as hvd

        def child(process_set, error, queue):
            import farandole.torch
            same = hvd is farandole.torch and type(process_set) is farandole.torch.ProcessSet
            queue.put((same, isinstance(error, hvd.HorovodInternalError)))

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            work = (hvd.ProcessSet([0]), hvd.HorovodInternalError("lost"), queue)
            process = context.Process(target=child, args=work)
            process.start()
            print(queue.get(timeout=50))
            process.join()
    """)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=drop_in.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "(True, True)\n"


# --- beside PyPI's horovod --------------------------------------------------------------------------------------------


def install_pypi_horovod(folder: Path) -> None:
    """Put what pip leaves of PyPI's horovod into a folder, as far as it is looked at."""
    information = folder / "horovod-0.28.1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")


def test_the_package_refuses_to_be_installed_beside_horovod_of_pypi(tmp_path: Path) -> None:
    install_pypi_horovod(tmp_path)
    path = os.pathsep.join([str(drop_in.PACKAGE), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = drop_in.python("import horovod", check=False, PYTHONPATH=path)
    assert done.returncode == 1
    assert "horovod 0.28.1 and farandole-horovod are both installed" in done.stderr
    assert "pip uninstall -y horovod farandole-horovod && pip install farandole-horovod" in done.stderr


def test_horovodrun_refuses_too(tmp_path: Path) -> None:
    install_pypi_horovod(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = "import sys; from farandole.compat.runner.launch import main; sys.exit(main())"
    done = drop_in.python(code, check=False, PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: horovod 0.28.1 and farandole-horovod are both installed")


def test_a_pypi_horovod_that_came_later_is_noticed_as_well(tmp_path: Path) -> None:
    """It has overwritten our package then; what looks is read when Python starts."""
    install_pypi_horovod(tmp_path)
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise SystemExit('the other package was loaded')\n")
    path = os.pathsep.join([str(tmp_path), str(drop_in.PACKAGE), os.environ.get("PYTHONPATH", "")])
    start = (drop_in.PACKAGE / "farandole_horovod.pth").read_text()
    done = drop_in.python(f"{start}\nimport horovod", check=False, PYTHONPATH=path)
    assert "horovod 0.28.1 and farandole-horovod are both installed" in done.stderr
