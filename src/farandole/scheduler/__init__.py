"""Who gets which slots of a cluster: policies as pure functions of what is known, with a reason for every job."""

from farandole.scheduler.cluster import Allocation, Cluster, Node, parse_cluster
from farandole.scheduler.job import Decision, JobView, Report
from farandole.scheduler.policies import make_policy
from farandole.scheduler.rules import Queue, Rules

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
