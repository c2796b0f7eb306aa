"""What scripts for `horovod.tensorflow` import from its modules, and its names that begin with an underscore."""
