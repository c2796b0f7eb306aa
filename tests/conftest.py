"""What holds for all tests."""

import signal

# A shell starts background jobs with Ctrl-C ignored, nohup ignores a hang-up, and so do some CI systems.
# Children of the tests would inherit that, and those that test signals would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
