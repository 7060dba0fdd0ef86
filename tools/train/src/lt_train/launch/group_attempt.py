"""What an attempt on several nodes has alike, whether lost nodes are replaced (`spare_run`) or left out (`elastic_run`).

The node that leads watches the other nodes while its own ranks run, and waits for the endings of theirs afterwards.
"""

import time
from collections.abc import Callable

from lt_shared.console import ExitCode
from lt_train.launch.node_group import Leader
from lt_train.process.restart_policy import NEXT_PHASE

POLL_SECONDS = 0.1
# Ranks whose connections were closed report that after four seconds. By then the node that they have lost is known to be lost.
CAUSE_SECONDS = 10.0
# Time for the launchers of other nodes to kill their ranks.
STOP_SECONDS = 60.0
ENDED = (ExitCode.OK, ExitCode.TRY_AGAIN, NEXT_PHASE)


class NodesLost(Exception):
    """A node that takes part in the present attempt is lost."""


class OthersFailed(Exception):
    """Another node's ranks have failed with the exit code `code`, and that node has said why."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Stopped(Exception):
    """The leader ends the present attempt."""


def check_others(group: Leader) -> None:
    """Read the other nodes' messages. Raises NodesLost and OthersFailed."""
    group.poll()
    if group.lost:
        raise NodesLost
    if failed := [code for code in group.endings.values() if code not in ENDED]:
        raise OthersFailed(failed[0])


def wait_for_others(group: Leader, code: int, watch: Callable[[], None]) -> None:
    """Wait until the ranks of the other nodes have ended, after this node's ranks ended with `code`.

    A failure here may be the echo of a lost node, which `watch` then raises. After a good end, the other nodes end at the same
    step.
    """
    deadline = time.monotonic() + (STOP_SECONDS if code in ENDED else CAUSE_SECONDS)
    while not group.is_complete and time.monotonic() < deadline:
        group.poll()
        if code not in ENDED:
            watch()
        time.sleep(POLL_SECONDS)


def code_of_all(group: Leader, code: int) -> int:
    """Return the exit code of all nodes' ranks; this node's ranks ended with `code`."""
    return max(code, *group.endings.values()) if group.endings and code in ENDED else code
