"""What a failure or a change costs: farandole beside torchft and torchrun, in the same run on the same machine."""
