"""Names that scripts import from the modules of `horovod.tensorflow`, also those that begin with an underscore."""
