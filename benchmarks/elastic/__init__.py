"""The cost of a failure or a change with farandole, torchft and torchrun, in the same run on the same machine."""
