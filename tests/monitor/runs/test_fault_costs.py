"""What checkpoints and failures cost, as lt-train's own lines say it, in the three views of a run."""

import datetime
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lt_shared.contracts import run_log
from lt_shared.contracts.recovery_notes import LocalCheckpoint, Recovery, Started

# Metrics of a run are dropped an hour after its end.
BEGIN = datetime.datetime.now() - datetime.timedelta(seconds=60)


def at(seconds: float) -> datetime.datetime:
    return BEGIN + datetime.timedelta(seconds=seconds)


def steps(first: int, last: int, begin: float) -> list[str]:
    """One a second."""
    return [
        run_log.Step(number, 20, step_seconds=1.0, loss=2.5, time=at(begin + number - first + 1)).format()
        for number in range(first, last + 1)
    ]


# A checkpoint in SAVE after step 4, local ones after 6 and 8; the run dies in step 10 and goes on from 8.
LINES = [
    *steps(1, 1, 0),
    Started(9.5, 1, {"launcher": 0.5, "torch": 4.0, "first step": 5.0}, {"context": 1.25}).format(at(1)),
    *steps(2, 4, 1),
    run_log.CheckpointSaved(4, "/fsx/run", at(6)).format(),
    run_log.format_checkpoint_waited(4, 0.5, 2.0),
    *steps(5, 6, 6),
    LocalCheckpoint(6, 0.1, 0.9).format(at(8.2)),
    *steps(7, 8, 8.2),
    LocalCheckpoint(8, 0.3, 1.1).format(at(10.6)),
    *steps(9, 9, 10.6),
    run_log.CheckpointLoaded(8, "/local/lt-1.1", at(40)).format(),
    *steps(9, 9, 42),
    Recovery(31.4, 9, 9, 1).format(at(43)),
    *steps(10, 20, 43),
]
MEANS = {
    "shared": {"count": 1, "stall_seconds": 0.5, "write_seconds": 2.0},
    "local": {"count": 2, "stall_seconds": 0.2, "write_seconds": 1.0},
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "run.log").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "run.log"


def test_a_start_is_a_note(tool: Any, log: Path) -> None:
    events = [json.loads(line) for line in tool("scrape", str(log)).stdout.splitlines()]
    (found,) = [event for event in events if event.get("note") == "started"]
    assert found["fields"] == {"seconds": 9.5, "step": 1, "phases": {"launcher": 0.5, "torch": 4.0, "first step": 5.0}}
    assert found["message"].endswith("launcher 0.50, torch 4.00, first step 5.00; beside that context 1.25")


@pytest.mark.parametrize(
    ("phases", "cause"),
    [
        ({"process groups": 0.5, "first step": 0.5}, "hang"),
        ({"interpreter": 0.2, "process groups": 0.5, "first step": 0.5}, "hang"),
        ({"launcher": 0.3, "interpreter": 0.2, "process groups": 0.5, "first step": 0.5}, "queue"),
    ],
)
def test_a_rank_that_is_replaced_within_a_job_is_no_queue(
    phases: dict[str, float], cause: str, tool: Any, tmp_path: Path
) -> None:
    """27.4 s between the last line of the one attempt and the start of the other."""
    after = LINES.index(Recovery(31.4, 9, 9, 1).format(at(43)))
    lines = [*LINES[:after], Started(4.0, 9, phases, {}).format(at(43)), *LINES[after:]]
    (tmp_path / "run.log").write_text("".join(f"{line}\n" for line in lines))
    told = json.loads(tool("goodput", "--json", str(tmp_path / "run.log")).stdout)
    assert {name: told["lost_seconds"].get(name, 0.0) for name in ("hang", "queue")} == {
        "hang": 0.0, "queue": 0.0, cause: pytest.approx(27.4, abs=0.5)
    }  # fmt: skip
    # From 8.5 s before the first line on.
    assert told["lost_seconds"]["start"] == pytest.approx(8.5 + 3, abs=0.5)


def test_the_costs_in_summarize_and_goodput(tool: Any, log: Path) -> None:
    (summary,) = json.loads(tool("summarize", "--json", str(log)).stdout)["runs"]
    goodput = json.loads(tool("goodput", "--json", str(log)).stdout)
    for told in (summary, goodput):
        assert told["checkpoints"] == MEANS
        assert (told["recoveries"], told["recovery_seconds"], told["lost_steps"]) == (1, 31.4, 1)
    assert summary["lost_seconds"] == 1.0
    assert goodput["lost_seconds"]["lost-work"] == pytest.approx(1.0)
    # What passed between the step lines: 2 s until line 5, and 0.2 s and 0.6 s around the local ones.
    assert goodput["lost_seconds"]["checkpoint"] == pytest.approx(2 + 0.2 + 0.6, abs=0.7)
    table = tool("summarize", str(log)).stdout
    assert "1 shared, stall 0.5 s of 2 s; 2 local, stall 0.2 s of 1 s" in table
    assert "31 s a failure, 1 so far" in table
    shown = tool("goodput", str(log)).stdout
    assert "2 local checkpoints: stall 0.2 s, complete after 1 s" in shown
    assert "1 recovery: 31.4 s each" in shown


def test_the_costs_as_metrics(tool: Any, log: Path, promtool: str) -> None:
    text = tool("prom", log.name).stdout
    for line in (
        'checkpoints_total{run="run",store="shared"} 1',
        'checkpoints_total{run="run",store="local"} 2',
        'checkpoint_stall_seconds_total{run="run",store="local"} 0.4',
        'checkpoint_write_seconds_total{run="run",store="shared"} 2',
        'last_local_checkpoint_step{run="run"} 8',
        'recovery_seconds_total{run="run"} 31.4',
        'recoveries_total{run="run"} 1',
        'lost_steps_total{run="run"} 1',
    ):
        assert f"lt_train_{line}\n" in re.sub(r',monitor="[^"]+"', "", text)
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_line_of_megatron_lm_has_no_times(tool: Any, tmp_path: Path) -> None:
    lines = [*steps(1, 2, 0), "  successfully saved local checkpoint from iteration       2", *steps(3, 3, 3)]
    (tmp_path / "run.log").write_text("".join(f"{line}\n" for line in lines))
    records = [json.loads(line) for line in tool("scrape", str(tmp_path / "run.log")).stdout.splitlines()]
    assert [record["fields"] for record in records if record.get("note") == "local-checkpoint"] == [{"step": 2}]
