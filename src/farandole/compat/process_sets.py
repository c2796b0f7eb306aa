"""`horovod.common.process_sets`."""

from farandole.worker.core.basics import add_process_set, remove_process_set
from farandole.worker.core.group import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
