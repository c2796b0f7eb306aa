"""The names of Horovod that its users' scripts rely on.

The distribution farandole-horovod contains only the package `horovod`, whose modules `aliases` provides, and the
command `horovodrun`; their code is here. Functions have the names and modules from which Horovod's users import them,
including names that begin with an underscore.
"""
