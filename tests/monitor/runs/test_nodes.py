"""A run that goes on with fewer nodes, and takes a node back, is one run."""

import datetime
import json
from pathlib import Path
from typing import Any

from lt_shared.contracts import run_log
from lt_shared.contracts.recovery_notes import Nodes

BEGIN = datetime.datetime(2026, 11, 30, 12)


def steps(first: int, last: int) -> list[str]:
    seconds = datetime.timedelta(seconds=1)
    return [
        run_log.Step(number, 20, step_seconds=1.0, loss=2.5, time=BEGIN + number * seconds).format()
        for number in range(first, last + 1)
    ]


def attempt(nodes: int, step: int, last: int) -> list[str]:
    time = BEGIN + datetime.timedelta(seconds=step)
    return [
        run_log.CheckpointLoaded(step, "/fsx/run", time).format(),
        Nodes(nodes, 4, step).format(time),
        *steps(step + 1, last),
        run_log.CheckpointSaved(last, "/fsx/run", time).format(),
    ]


# The run loses a node in step 6, and has it back from step 8 on.
LINES = [*steps(1, 4), run_log.CheckpointSaved(4, "/fsx/run", BEGIN).format(), *steps(5, 6), *attempt(3, 4, 8)]
ENDED = run_log.format_ended(8, "--min-nodes", "the same command continues", BEGIN + datetime.timedelta(seconds=8))


def test_the_nodes_of_a_run(tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"{line}\n" for line in LINES))
    (summary,) = json.loads(tool("summarize", "--json", str(log)).stdout)["runs"]
    assert summary["nodes"] == {"nodes": 3, "all_nodes": 4, "step": 4}
    assert (summary["restarts"], summary["lost_steps"], summary["step"]) == (1, 2, 8)
    with log.open("a") as file:
        file.write("".join(f"{line}\n" for line in (ENDED, *attempt(4, 8, 20))))
    (summary,) = json.loads(tool("summarize", "--json", str(log)).stdout)["runs"]
    assert summary["nodes"] == {"nodes": 4, "all_nodes": 4, "step": 8}
    assert (summary["restarts"], summary["lost_steps"], summary["fault"]) == (2, 2, None)
    assert "4 of 4 since step 8" in tool("summarize", str(log)).stdout
    events = [json.loads(line) for line in tool("scrape", str(log)).stdout.splitlines()]
    assert [event["fields"]["nodes"] for event in events if event.get("note") == "nodes"] == [3, 4]
    assert [event["reason"] for event in events if event["kind"] == "end"] == ["iterations"]


def test_a_run_that_loses_no_node(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("".join(f"{line}\n" for line in steps(1, 4)))
    (summary,) = json.loads(tool("summarize", "--json", str(tmp_path / "run.log")).stdout)["runs"]
    assert summary["nodes"] is None
