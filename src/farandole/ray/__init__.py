"""Training on a Ray cluster.

`RayExecutor` has Horovod's interface: workers are actors, which keep their state from call to call. `run` starts an
elastic job, whose workers join and leave with the nodes of the cluster. `report` is for training functions of Ray
Train. Ray is imported when it is used.
"""

from farandole.ray.elastic_run import run
from farandole.ray.executor import RayExecutor
from farandole.ray.settings import RaySettings
from farandole.ray.train_report import report

__all__ = ["RayExecutor", "RaySettings", "report", "run"]
