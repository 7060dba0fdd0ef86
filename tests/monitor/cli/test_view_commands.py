"""The commands for people as they are typed: what they print, and that it is the same for a file and for scraped events."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

LOGS = Path(__file__).parents[1] / "samples"
STORY = str(LOGS / "story.jsonl")

Tool = Callable[..., subprocess.CompletedProcess[str]]


def output(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_runs_prints_a_json_line_for_each_run_with_its_arguments(tool: Tool) -> None:
    printed = output(tool("runs", "--json", STORY, str(LOGS / "megatron_old.log")))
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [(line["v"], line["kind"], line["step"]) for line in lines] == [(1, "run", 400), (1, "run", 200)]
    assert lines[0]["run"] == "story"
    assert lines[0]["arguments"]["hidden_size"] == 4096


def test_what_the_user_knows_reaches_every_command(tool: Tool, tmp_path: Path) -> None:
    assert "MFU              47.7%" in output(tool("summarize", STORY, "--gpu", "H100"))
    assert "47.7%" in output(tool("runs", STORY, LT_MONITOR_RUNS_GPU="H100"))
    output(tool("plot", STORY, "--gpu", "H100", "-o", "a.html"))
    assert "47.7%" in (tmp_path / "a.html").read_text()


def test_a_time_out_names_the_rank_that_the_others_waited_for(tool: Tool) -> None:
    """Rank 0 reports it first, rank 2 is the one that is behind."""
    lines = [" iteration 1/ 9 | lm loss: 5.0E+00 |"]
    for rank, done in ((0, 1579), (1, 1579), (2, 1571), (3, 1579)):
        lines.append(
            f"{rank}: [rank{rank}]:[E321 02:07:09.408271257 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank {rank}] "
            f"Exception (either an error or timeout) detected by watchdog at work: {done + 1}, last enqueued NCCL work: 1582, "
            f"last completed NCCL work: {done}."
        )
    log = "\n".join(lines) + "\n"
    assert "nccl-timeout, first suspect rank 2, in attempt 1" in output(tool("summarize", "-", stdin=log.encode()))
    assert json.loads(output(tool("runs", "--json", "-", stdin=log.encode())))["fault"]["suspect_ranks"] == [2]


@pytest.mark.parametrize("rate", ["5.00s/it", "0.20it/s"])
def test_progress_bars_tell_the_speed_and_the_time_left(tool: Tool, rate: str) -> None:
    frames = "".join(
        f"\rEpoch 0: {step * 100 // 91:3}%|▎         | {step}/91 [{step * 5 // 60:02}:{step * 5 % 60:02}<7:52:06, {rate}, "
        f"reduced_train_loss=9.{step}, global_step={step - 1}.000]"
        for step in range(1, 42)
    ).encode()
    (told,) = json.loads(output(tool("summarize", "--json", "-", stdin=frames)))["runs"]
    assert (told["step"], told["total_steps"], told["step_seconds"], told["eta_seconds"]) == (40, 91, 5.0, 255.0)
    assert json.loads(output(tool("goodput", "--json", "-", stdin=frames)))["productive_seconds"] == pytest.approx(205)


def test_plot_without_an_output_prints_sparklines_of_standard_input(tool: Tool) -> None:
    assert output(tool("plot", "-", stdin=Path(STORY).read_bytes())) == output(tool("plot", STORY))


def test_jobs_that_went_on_from_a_checkpoint_are_one_run(tool: Tool, tmp_path: Path) -> None:
    lines = Path(STORY).read_text().splitlines(keepends=True)
    starts = [index for index, line in enumerate(lines) if '"kind":"start"' in line]
    for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True), 76):
        job = "".join(lines[begin:end]).replace('"run":"story"', f'"run":"slurm-{number}"').replace("story.log", f"{number}.log")
        (tmp_path / f"slurm-{number}.out").write_text(job)
    (joined,) = json.loads(output(tool("summarize", "--json", "slurm-*.out")))["runs"]
    whole = json.loads(output(tool("summarize", "--json", STORY)))["runs"][0]
    assert joined == whole | {"run": "slurm-76"}
    shutil.copy(tmp_path / "slurm-76.out", tmp_path / "again.out")
    again = (tmp_path / "again.out").read_text().replace("slurm-76", "again").replace("76.log", "again.log")
    (tmp_path / "again.out").write_text(again)
    assert len(output(tool("runs", "--json", "slurm-76.out", "again.out")).splitlines()) == 2
