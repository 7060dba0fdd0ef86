"""Settings of all tests."""

import signal

from hypothesis import settings

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# A job that a shell started in the background has SIGINT ignored, and so have its children: tests send it to tools.
signal.signal(signal.SIGINT, signal.default_int_handler)
