"""The names that users of Horovod rely on.

The distribution farandole-horovod holds no more than the name `horovod` (`aliases` gives it its modules) and the
command `horovodrun`; all that they do is here. Names and places of functions are Horovod's own where its users import
them, also those that begin with an underscore.
"""
