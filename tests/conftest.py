"""What holds for all tests."""

import signal

# A shell starts background jobs with Ctrl-C ignored, and so do some CI systems; the children of the tests would inherit
# that, and those that test Ctrl-C would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
