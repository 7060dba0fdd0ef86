"""`lt-monitor goodput` on whole stories."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from lt_shared.contracts import run_log

LOGS = Path(__file__).parents[1] / "samples"


def event(kind: str, offset: int, seconds: float | None = None, file: str = "r.log", **fields: Any) -> str:
    time = (
        {}
        if seconds is None
        else {"time": f"2026-01-01T{10 + int(seconds // 3600):02}:{int(seconds // 60 % 60):02}:{seconds % 60:06.3f}"}
    )
    run = file.removesuffix(".log")
    return json.dumps({"v": 1, "kind": kind, "run": run, **time, **fields, "src": {"file": file, "offset": offset}}) + "\n"


def steps(first: int, last: int, begin: float, offset: int, file: str = "r.log", timed: bool = True) -> str:
    return "".join(
        event("step", offset + number, begin + 2 * (number - first + 1) if timed else None, file, step=number, step_seconds=2.0)
        for number in range(first, last + 1)
    )


STORY = (
    event("start", 0, 0, arguments={"world_size": 16, "save": "/save"})
    + steps(1, 50, 60, 1)
    + event("checkpoint", 60, 170, step=50, path="/save")
    + steps(51, 80, 180, 61)
    + event("fault", 200, 840, fault="nccl-timeout", cause="cascade", severity="critical", message="Watchdog")
    + event("start", 201, 1440, arguments={"world_size": 16, "save": "/save"})
    + event("load", 202, 1460, step=50, path="/save")
    + steps(51, 100, 1500, 203)
    + event("end", 300, 1610, reason="completed")
)
EXPECTED = {"queue": 600, "start": 120, "checkpoint": 20, "lost-work": 60, "hang": 600, "stop": 10}


def test_a_story_with_a_crash(tool: Any) -> None:
    done = tool("goodput", "--json", "-", stdin=STORY)
    told = json.loads(done.stdout)
    assert told["lost_seconds"] == pytest.approx(EXPECTED)
    assert told["productive_seconds"] == pytest.approx(200)
    assert told["allocated_seconds"] == pytest.approx(1010)
    assert told["goodput"] == pytest.approx(200 / 1010, abs=1e-6)
    assert (told["restarts"], told["lost_steps"], told["gpus"]) == (1, 30, 16)


def test_an_attempt_begins_where_its_trainer_says_that_it_is_initialized(tool: Any) -> None:
    told = event("note", 200, 1440, note="initialized", message="x") + event(
        "start", 201, arguments={"world_size": 16, "save": "/save"}
    )
    story = STORY.replace(event("start", 201, 1440, arguments={"world_size": 16, "save": "/save"}), told)
    assert told in story
    done = tool("goodput", "--json", "-", stdin=story)
    assert json.loads(done.stdout)["lost_seconds"] == pytest.approx(EXPECTED)


def test_a_table_for_people(tool: Any) -> None:
    done = tool("goodput", "--price-per-gpu-hour", "3.6", "-", stdin=STORY)
    assert done.stdout.splitlines() == [
        "r: goodput 19.8%",
        "  productive       3 min   19.8%",
        "  hang            10 min   59.4%",
        "  start            2 min   11.9%",
        "  lost-work         60 s    5.9%",
        "  checkpoint        20 s    2.0%",
        "  stop              10 s    1.0%",
        "  queue           10 min",
        "  1 restart, 30 steps repeated",
        "  cost 16.16 for 16 GPUs, of which 12.96 were lost",
    ]


def test_jobs_that_log_into_files_of_their_own_are_one_run(tool: Any) -> None:
    head, _, tail = STORY.partition(event("start", 201, 1440, arguments={"world_size": 16, "save": "/save"}))
    later = event("start", 201, 1440, arguments={"world_size": 16, "save": "/save"}) + tail
    later = later.replace('"run": "r"', '"run": "second"').replace("r.log", "second.log")
    told = [json.loads(line) for line in tool("goodput", "--json", "-", stdin=later + head).stdout.splitlines()]
    assert len(told) == 1
    assert told[0]["lost_seconds"] == pytest.approx(EXPECTED)


def test_without_times_it_says_what_it_does_not_know(tool: Any) -> None:
    story = steps(1, 50, 0, 1, timed=False) + event("load", 60, step=40, path="x") + steps(41, 60, 0, 100, timed=False)
    done = tool("goodput", "-", stdin=story)
    assert "no times" in done.stdout
    told = json.loads(tool("goodput", "--json", "-", stdin=story).stdout)
    assert told["lost_seconds"] == pytest.approx({"lost-work": 20})
    assert told["has_times"] is False


def test_a_price_without_a_number_of_gpus(tool: Any) -> None:
    story = steps(1, 50, 0, 1)
    done = tool("goodput", "--price-per-gpu-hour", "2", "-", stdin=story)
    assert "--gpus" in done.stderr
    told = json.loads(tool("goodput", "--json", "--price-per-gpu-hour", "2", "--gpus", "36", "-", stdin=story).stdout)
    assert (told["cost"], told["lost_cost"]) == (2.0, 0.0)


def test_no_steps(tool: Any) -> None:
    assert tool("goodput", "-", stdin="noise\n").returncode == 65
    assert tool("goodput", "--price-per-gpu-hour", "nan", "-").returncode == 2


def test_hostile_run_names_are_shown(tool: Any) -> None:
    done = tool("goodput", "-", stdin=steps(1, 5, 0, 1).replace('"run": "r"', '"run": "\\u001b[2Jx"'))
    assert done.stdout.startswith("\\x1b[2Jx: goodput")


@pytest.mark.parametrize("interval", [1, 10])
def test_jobs_that_loaded_nothing_are_runs_of_their_own(tool: Any, interval: int) -> None:
    def job(file: str, begin: float) -> str:
        lines = "".join(
            event("step", 1 + step, begin + 2 * step, file, step=step, step_seconds=2.0)
            for step in range(interval, 101, interval)
        )
        return event("start", 0, begin, file, arguments={"world_size": 2, "save": "/save"}) + lines

    told = [
        json.loads(line) for line in tool("goodput", "--json", "-", stdin=job("a.log", 0) + job("b.log", 10)).stdout.splitlines()
    ]
    assert [(one["run"], one["restarts"], one["lost_steps"]) for one in told] == [("a", 0, 0), ("b", 0, 0)]


@pytest.mark.parametrize("year", ["9999", "2099", "1970"])
def test_times_that_cannot_be_are_left_out(tool: Any, year: str) -> None:
    story = steps(1, 10, 0, 1) + steps(11, 12, 20, 1).replace("2026-01", f"{year}-01") + steps(13, 50, 24, 1)
    done = tool("goodput", "--json", "-", stdin=story)
    assert json.loads(done.stdout)["allocated_seconds"] == pytest.approx(100)
    assert done.stderr.count("left out 2 times before 2000 or in the future") == 1
    assert f"{year}-01-01T10:00:22" in done.stderr


def test_a_clock_of_another_zone_may_be_ahead(tool: Any) -> None:
    ahead = datetime.datetime.now() + datetime.timedelta(hours=13)
    story = "".join(
        event("step", step, step=step, step_seconds=2.0, time=(ahead + datetime.timedelta(seconds=2 * step)).isoformat())
        for step in range(1, 30)
    )
    done = tool("goodput", "--json", "-", stdin=story)
    assert (json.loads(done.stdout)["has_times"], done.stderr) == (True, "")


def test_a_job_that_timed_out_and_its_second_that_ran_out_of_time(tool: Any) -> None:
    """By hand: 1340 s and 810 s were allocated, and 500 steps of 2 s count; 90 steps were done twice."""
    one = json.loads(tool("goodput", "--json", str(LOGS / "restart.log")).stdout)
    assert (one["allocated_seconds"], one["productive_seconds"], one["goodput"]) == (2150, 1000, 0.465116)
    assert (one["lost_steps"], one["restarts"]) == (90, 1)
    assert one["lost_seconds"] == {"queue": 320, "start": 200, "checkpoint": 170, "lost-work": 180, "hang": 600}


def test_a_run_that_began_again_in_the_same_log(tool: Any) -> None:
    """By hand: of 200 steps of 2 s none count, of 100 steps of 1 s all do; two saves of 30 s."""
    log = str(LOGS / "two_runs.log")
    one = json.loads(tool("goodput", "--json", log).stdout)
    assert (one["productive_seconds"], one["lost_seconds"]["lost-work"], one["lost_steps"]) == (100, 400, 200)
    (summary,) = json.loads(tool("summarize", "--json", log).stdout)["runs"]
    assert (summary["lost_steps"], summary["restarts"]) == (200, 1)


@pytest.mark.parametrize("interval", [1, 10, 100])
def test_goodput_does_not_depend_on_the_log_interval(tool: Any, tmp_path: Path, interval: int) -> None:
    """100 s of start and 1000 steps of a second: 1000 / 1100, however many steps a line is for."""
    begin = datetime.datetime(2026, 1, 16, 7)
    lines = [f"[before the start of training step] datetime: {begin:%Y-%m-%d %H:%M:%S}"]
    for step in range(interval, 1001, interval):
        time = begin + datetime.timedelta(seconds=100 + step)
        lines.append(run_log.Step(step, 1000, step_seconds=1.0, loss=2.0, nan_steps=0, time=time).format())
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    one = json.loads(tool("goodput", "--json", str(tmp_path / "a.log")).stdout)
    assert (one["productive_seconds"], one["allocated_seconds"], one["goodput"]) == (1000, 1100, 0.909091)
