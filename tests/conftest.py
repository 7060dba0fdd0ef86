"""Settings of all tests."""

import os
import signal
from typing import Any

import pytest
from hypothesis import settings

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Triton's kernels run in its interpreter, which needs no GPU. Triton reads this when anything imports it, as torch may.
os.environ["TRITON_INTERPRET"] = "1"

# A job in the background of a shell, or under nohup, ignores these, and its children would too: tests send them to tools. A
# handler that does nothing keeps them ignored here and leaves the default to the children.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda signal_number, frame: None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file at a time to each process, but all that needs a cluster to one: they share one Slurm, and mostly wait."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "cluster" if "tests/cluster/" in nodeid else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests recorded for people to read, as `summary`: what a newcomer downloads."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(value)
