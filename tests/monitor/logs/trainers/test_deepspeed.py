"""DeepSpeed's reports of steps, alone and between the step lines of Megatron and GPT-NeoX."""

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_logs import events, summary, values

from lt_monitor.logs.fields import read_values
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.trainers import deepspeed


def test_speed_and_memory_stand_below_the_step() -> None:
    first, second, labelled, last, _ = events("deepspeed", "step")
    assert values(first) == {
        "time": "2022-03-11T02:06:58.985",
        "step": 40,
        "metrics": {"skipped": 2.0},
        "learning_rate": 5e-05,
        "samples_per_second": 83.48609168106144,
        "memory_bytes": round(9.02 * 2**30),
    }
    assert (second["step"], second["samples_per_second"]) == (50, 83.73838805358588)
    assert (labelled["step"], labelled["learning_rate"], labelled["samples_per_second"], labelled["memory_bytes"]) == (
        1890,
        9.275816201087529e-08,
        6.809163050305052,
        round(10.55 * 2**30),
    )
    assert (last["step"], last["metrics"], last["samples_per_second"]) == (14000, {"skipped": 25.0}, 1322.8113222423717)


def test_pipeline_engine() -> None:
    assert values(events("deepspeed", "step")[-1]) == {
        "step": 200,
        "loss": 5.5103,
        "step_seconds": 0.936,
        "samples_per_second": 136.706,
        "metrics": {"total loss": 5.5508, "moe loss": 0.0405},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "steps: 3280 loss: 1.2034 iter time (s): 0.550 samples/sec: 57.1",
            {"step": 3280, "loss": 1.2034, "step_seconds": 0.55, "samples_per_second": 57.1},
        ),
        (
            "step:   3280 /  10000 loss: 1.2034 iter time (s): 0.550 samples/sec: 57.1 eta: 12:01",
            {"step": 3280, "total_steps": 10000, "loss": 1.2034, "step_seconds": 0.55, "samples_per_second": 57.1},
        ),
    ],
)
def test_versions_of_the_pipeline_engine(text: str, expected: dict[str, Any]) -> None:
    found = deepspeed.pipeline_step(Line(text.encode(), 0))
    assert found is not None
    assert read_values(text.encode(), found.values) == expected


def test_overflow_is_a_note() -> None:
    notes = [(note["note"], note["rank"], note["fields"]) for note in events("deepspeed", "note")]
    assert notes == [
        ("overflow", 0, {"loss_scale": 65536.0}),
        ("overflow", 0, {"loss_scale": 65536.0, "next_loss_scale": 32768.0}),
        ("overflow", 0, {"loss_scale": 16777216.0, "next_loss_scale": 8388608.0}),
    ]


def test_the_timer_that_counts_from_the_start_of_the_process_is_no_step() -> None:
    """Its step 34 comes before the iteration 34 of GPT-NeoX, and its steps 5 and 6 behind iteration 136,004 of a resumed run."""
    steps = [(step["step"], step.get("loss")) for step in events("deepspeed_megatron", "step")]
    assert steps == [(34, 11.18665), (136004, 12.316531), (136005, 11.967899), (136006, 11.744588)]


def test_of_several_ranks_the_line_without_loss_does_not_hide_the_one_with_it() -> None:
    """The first rank's log comes through DeepSpeed's logger, the last rank prints the loss, and a launcher labels both."""
    log = (
        b"0: [2023-07-25 21:03:21,037] [INFO] [logging.py:96:log_dist] [Rank 0] step=35, skipped=0, lr=[2.1e-06], mom=[0.9]\n"
        b"7:  iteration       35/   10000 | elapsed time per iteration (ms): 4103.1 | lm_loss: 1.118665E+01 |\n"
    )
    found = LogParser().parse(log, 0).records("log", "log")
    assert [(step["step"], step["task"], step.get("loss")) for step in found] == [(35, 0, None), (35, 7, 11.18665)]


def test_the_configuration_is_no_step() -> None:
    log = b"[2021-06-10 20:47:51,885] [INFO] [logging.py:60:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0, 0.0], mom=[0.9]\n"
    assert LogParser().parse(log, 0).items == []


def test_summary(tool: Any) -> None:
    found = summary(tool, "deepspeed_megatron")
    assert (found["step"], found["total_steps"], found["loss"], found["restarts"]) == (136006, 136100, 11.744588, 0)
    assert (found["tflops_per_gpu"], found["tokens_per_second_per_gpu"]) == ((53.66 + 53.59) / 2, 4790.426), "medians"


def test_the_launcher_says_that_the_job_is_done(tool: Any, tmp_path: Path) -> None:
    """From DeepSpeedExamples' training logs."""
    log = "[2023-04-12 22:25:53,441] [INFO] [logging.py:96:log_dist] [Rank 0] step=470, skipped=4, lr=[9.6e-06], mom=[0.9]\n"
    log += "[2023-04-12 22:35:53,441] [INFO] [launch.py:460:main] Process 47958 exits successfully.\n"
    (tmp_path / "a.log").write_text(log)
    (run,) = json.loads(tool("summarize", "--json", str(tmp_path / "a.log")).stdout)["runs"]
    assert (run["step"], run["ended"], run["silent"]) == (470, "completed", False)
