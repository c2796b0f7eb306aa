"""Scheduling policies: pure functions that give jobs the slots of a cluster, with a reason for every job."""

from farandole.control.scheduler.cluster import Allocation, Cluster, Node, parse_cluster
from farandole.control.scheduler.job import Decision, PolicyJob, TrainingReport
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.rules import Queue, Rules

__all__ = [
    "Allocation",
    "Cluster",
    "Decision",
    "Node",
    "PolicyJob",
    "Queue",
    "Rules",
    "TrainingReport",
    "make_policy",
    "parse_cluster",
]
