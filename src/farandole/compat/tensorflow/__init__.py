"""Names that scripts import from the modules of `horovod.tensorflow`, including those that begin with an underscore."""
