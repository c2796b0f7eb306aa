"""`horovod.common.process_sets`."""

from farandole.core.basics import add_process_set, remove_process_set
from farandole.core.group import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
