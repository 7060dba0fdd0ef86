"""Settings of all tests."""

import signal

from hypothesis import settings

# They start daemons as root and take minutes: `nox -s cluster` runs them.
collect_ignore = ["cluster"]

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# A job in the background of a shell, or under nohup, ignores these, and its children would too: tests send them to tools. A
# handler that does nothing keeps them ignored here and leaves the default to the children.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda signal_number, frame: None)
