"""Each fault has an advice and an action, which the guide lists with their exit codes."""

import re
from pathlib import Path

import failure_tally
import pytest

from lt_monitor.events.records import FAULTS
from lt_monitor.runs.faults.advice import ADVICE, advice

GUIDE = Path(__file__).parents[4] / "docs/guides/causes.md"


def rows() -> dict[str, list[str]]:
    lines = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells for cells in ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)}


def test_the_guide_has_every_fault_with_its_advice_and_exit_code() -> None:
    listed = {name: cells for name, cells in rows().items() if name in FAULTS}
    assert set(listed) == set(FAULTS)
    for name, cells in listed.items():
        assert cells[2].startswith(ADVICE[name].text), name
        assert str(failure_tally.CODES[ADVICE[name].action]) in re.findall(r"\d+", cells[3]), name


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"fault": "xid", "xid": 79, "cause": "root", "action": "reboot"}, 69),
        ({"fault": "xid", "xid": 31, "cause": "unknown", "action": "monitor"}, 1),
        ({"fault": "killed", "signal": 9, "cause": "unknown"}, 1),
        ({"fault": "killed", "signal": 15, "cause": "cascade"}, 75),
        ({"fault": "traceback", "cause": "root"}, 78),
        ({"fault": "traceback", "cause": "cascade"}, 1),
        ({"fault": "nccl-error", "cause": "unknown", "message": "ncclSystemError: System call"}, 75),
        ({"fault": "nccl-error", "cause": "unknown", "message": "ncclInvalidUsage"}, 1),
        ({"fault": "neuron-error", "cause": "root", "action": "reset"}, 69),
        ({"fault": "other", "cause": "root"}, 1),
    ],
)
def test_what_a_fault_is_about_decides(fields: dict, code: int) -> None:
    assert failure_tally.CODES[advice({"message": "", **fields}).action] == code
