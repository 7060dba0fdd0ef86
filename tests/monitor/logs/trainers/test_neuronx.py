"""NeuronX Distributed: a bar and the step behind it on one line, from aws-samples/amazon-eks-ml#93."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from lt_monitor.logs.log_parser import LogParser

LOG = Path(__file__).parents[2] / "samples" / "trainers" / "neuronx.log"


def test_the_step_behind_a_bar_is_read_and_the_bar_is_not() -> None:
    found = LogParser().parse(LOG.read_bytes(), 0).records("log", "run")
    assert [{field: value for field, value in event.items() if field not in ("v", "run", "src")} for event in found] == [
        {
            "kind": "step",
            "step": 96,
            "samples_per_second": 24.631530041674928,
            "loss": 6.002302169799805,
            "learning_rate": 0.00028799999999999995,
            "grad_norm": 3.2969,
            "rank": 0,
        },
        {
            "kind": "step",
            "step": 97,
            "samples_per_second": 24.63089836600094,
            "loss": 5.956272125244141,
            "learning_rate": 0.00029099999999999997,
            "grad_norm": 3.1562,
            "rank": 0,
        },
    ]


def test_a_bar_alone_is_no_step() -> None:
    frame = LOG.read_bytes().splitlines()[0].split(b"]step ")[0] + b"]\n"
    assert b"global_step_step=95.00" in frame
    assert LogParser().parse(frame, 0).items == []


def test_summarize(tool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (run,) = json.loads(tool("summarize", "--json", str(LOG)).stdout)["runs"]
    assert (run["step"], run["loss"], run["restarts"]) == (97, 5.956272125244141, 0)
