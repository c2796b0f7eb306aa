"""Training on a Spark cluster: the processes of a job run in tasks of Spark.

It needs PySpark, and on the executors farandole and the packages of the training: `pip install 'farandole[spark]'`.

Example:
    >>> import farandole.spark  # doctest: +SKIP
    >>> farandole.spark.run(train, args=(0.01,), num_proc=4)  # doctest: +SKIP
"""

from farandole.spark.fixed import run
from farandole.spark.growing import run_elastic
from farandole.spark.horovod_runner import HorovodRunner
from farandole.spark.task import get_available_devices

__all__ = ["HorovodRunner", "get_available_devices", "run", "run_elastic"]
