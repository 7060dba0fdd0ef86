"""What stands on the line of a step without being of it: progress bars and dying processes print no line end."""

import dataclasses
import time
from pathlib import Path

import pytest

from lt_monitor.events.records import Record
from lt_monitor.logs.log_parser import LogParser
from lt_shared.contracts import run_log

STEP = run_log.Step(25, 100, 400, 1.5, 490.0, 1e-4, 16, 2.5, 1.0, 0.75, 0, 0)
MEGATRON = STEP.format().strip()
BAR = (
    "Epoch 0: :   0%|          | {step}/603000 [1:03:17<317:00:58, v_num=, reduced_train_loss={loss}, global_step={step}.0, "
    "consumed_samples=1.28e+6, train_step_timing in s=1.900]"
)
TITAN = (
    "[titan] 2026-01-16 07:32:24,123 - root - INFO - step: 25  loss:  3.4370  memory: 68.57GiB(86.69%)  tps: 6,785  mfu: 39.73%"
)
# From issue threads of pytorch and NeMo; the second is the end of Slurm's logs.
FAULTS = {
    "[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.": "nccl-timeout",
    "slurmstepd: error: *** STEP 42221.0 ON clr1247 CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***": "time-limit",
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total": "out-of-memory",
    "RuntimeError: DataLoader worker (pid 77) exited unexpectedly": "traceback",
}


def parse(text: str) -> list[Record]:
    return LogParser().parse(text.encode(), 7).records("log", "run")


@pytest.mark.parametrize("step", [MEGATRON, BAR.format(step=25, loss=2.5), TITAN], ids=["megatron", "bar", "torchtitan"])
@pytest.mark.parametrize("said", FAULTS, ids=FAULTS.values())
def test_a_fault_behind_a_step_is_an_event_of_its_own(step: str, said: str) -> None:
    first, second = parse(f"{step}{said}\n")
    assert (first["kind"], first["step"], first["src"]["offset"]) == ("step", 25, 7)
    assert second["fault"] == FAULTS[said]
    assert said.endswith(second["message"])
    assert second["src"]["offset"] == 7 + len(step.encode())


@pytest.mark.parametrize("said", FAULTS, ids=FAULTS.values())
def test_a_fault_before_a_step_is_an_event_of_its_own(said: str) -> None:
    first, second = parse(f"{said}{MEGATRON}\n")
    assert (first["fault"], first["src"]["offset"]) == (FAULTS[said], 7)
    assert (second["step"], second["loss"], second["src"]["offset"]) == (25, 2.5, 7 + len(said))


def test_frames_of_a_bar_whose_carriage_returns_were_lost_are_all_steps() -> None:
    frames = "".join(BAR.format(step=step, loss=step / 1000) for step in range(1990, 2001))
    steps = parse(f"{frames}{next(iter(FAULTS))}\n")
    assert [record.get("step") for record in steps] == [*range(1990, 2001), None]
    assert [record["loss"] for record in steps[:-1]] == [step / 1000 for step in range(1990, 2001)]


def test_a_million_frames_on_one_line_end() -> None:
    assert parse(BAR.format(step=1, loss=1.0) * 20_000)[-1]["step"] == 1


def test_what_stands_behind_a_step_has_the_task_of_the_line() -> None:
    """srun labels lines, not what is printed."""
    said = "slurmstepd: error: *** STEP 42221.0 ON clr1247 CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***"
    assert [record["task"] for record in parse(f" 3: {MEGATRON}{said}\n")] == [3, 3]


def test_lines_read_by_columns_lose_no_fault_behind_one_of_them() -> None:
    """The shape of a step line with a fault behind it does not become a template."""
    lines = [dataclasses.replace(STEP, step=step).format().strip() for step in range(100, 400)]
    lines[200] += next(iter(FAULTS))
    lines[201] += next(iter(FAULTS))
    records = parse("\n".join(lines) + "\n")
    assert [record.get("step") for record in records if record["kind"] == "step"] == list(range(100, 400))
    assert [index for index, record in enumerate(records) if record["kind"] == "fault"] == [201, 203]


@pytest.mark.parametrize(
    "bar", ["43%|####      | 100/230 [00:12<00:16,  8.1it/s]", "Training:  43%|█| 100/230 [00:12<00:16, 1.1s/it]"]
)
@pytest.mark.parametrize("said", FAULTS, ids=FAULTS.values())
def test_a_fault_behind_a_bar_without_a_step_is_found(bar: str, said: str) -> None:
    (record,) = parse(f"{bar}{said}\n")
    assert record["fault"] == FAULTS[said]
    assert said.endswith(record["message"])
    assert record.get("rank") == (3 if "ank3" in said or "Rank 3" in said else None)


def test_the_sample_of_a_job_that_ran_out_of_time() -> None:
    text = Path(__file__).parents[1] / "samples" / "glued_time_limit.log"
    records = LogParser().parse(text.read_bytes(), 0).records("log", "run")
    assert [(record["kind"], record.get("step"), record.get("loss")) for record in records] == [
        ("step", 1999, 2.61),
        ("step", 2000, 2.6),
        ("fault", None, None),
    ]


def test_the_end_of_a_line_of_megabytes_is_read_at_once() -> None:
    """A log without line ends: of each piece the last step, and the whole ones shortly before it."""
    begin = time.process_time()
    steps = parse(f"{MEGATRON} " * 12_000)
    assert steps[-1]["step"] == 25
    assert time.process_time() - begin < 10
