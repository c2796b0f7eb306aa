"""Who gets which slots of a cluster: policies as pure functions of what is known, with a reason for every job."""

from farandole.control.scheduler.cluster import Allocation, Cluster, Node, parse_cluster
from farandole.control.scheduler.job import Decision, JobView, Report
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.rules import Queue, Rules

__all__ = [
    "Allocation",
    "Cluster",
    "Decision",
    "JobView",
    "Node",
    "Queue",
    "Report",
    "Rules",
    "make_policy",
    "parse_cluster",
]
