"""All views tell the same of a run: its last loss, how each attempt ended, what followed what, and a start without a step."""

import html
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lt_monitor.runs.speed import RunFacts
from lt_monitor.views.live import reader, screen
from lt_monitor.views.live.screen import Choice
from lt_shared.contracts import run_log
from lt_shared.contracts.recovery_notes import Starting

SAMPLES = Path(__file__).parents[1] / "samples"
LOGS = ["story.jsonl", "lt_train.log", "megatron_old.log", "megatron_new.log", "torchtitan.log", "nemo_2.log", "restart.log"]
HEADING = "------------------------ arguments ------------------------\n  train_iters ..................................... 90\n"
ARGUMENTS = f"{HEADING}-------------------- end of arguments ---------------------\n"
FAILURE = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB\n"
EXITED = "srun: error: n2: task 3: Exited with exit code 1\n"


def steps(*numbers: int) -> str:
    return "".join(f"{run_log.Step(step, 90, loss=2 + 1 / step, step_seconds=1.0).format()}\n" for step in numbers)


def report(tool: Any, path: Path) -> str:
    assert tool("plot", str(path), "-o", "report.html").returncode == 0
    page = (path.parent / "report.html").read_text()
    return " ".join(html.unescape(re.sub(r"<(?:style|script).*?</(?:style|script)>|<[^>]*>", " ", page, flags=re.DOTALL)).split())


def watched(path: Path, runs: int = 1, choice: Choice | None = None) -> str:
    logs = reader.Logs([str(path)], RunFacts())
    logs.look()
    views = [logs.views[0]] * runs
    console = Console(file=io.StringIO(), width=150, height=60, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen.render(views, time.time(), 150, 60, None, [], choice))
    return capture.get()


@pytest.mark.parametrize("name", LOGS)
def test_the_last_loss_is_one_number_in_every_view(name: str, tool: Any, tmp_path: Path) -> None:
    log = tmp_path / name
    log.write_bytes((SAMPLES / name).read_bytes())
    (summary,) = json.loads(tool("summarize", "--json", name).stdout)["runs"]
    loss = f"{summary['loss']:.4f}"
    events = [json.loads(line) for line in tool("scrape", name).stdout.splitlines()]
    logged = [event["loss"] for event in events if event["kind"] == "step" and event.get("loss") is not None]
    assert f"{logged[-1]:.4f}" == loss
    table = dict(line.split(maxsplit=1) for line in tool("summarize", name).stdout.splitlines())
    assert table["loss"] == loss
    head, row = tool("runs", name).stdout.splitlines()
    assert row[head.index(" loss") + 1 :].split()[0] == loss
    assert json.loads(tool("runs", "--json", name).stdout)["loss"] == summary["loss"]
    curve = next(line for line in tool("plot", name).stdout.splitlines() if line.startswith("loss"))
    assert curve.split()[-1] == loss
    assert f" Loss {loss} " in report(tool, log)
    # Of a run that has ended long ago, prom has no metrics.
    metrics = [line for line in tool("prom", name).stdout.splitlines() if line.startswith("lt_train_loss{")]
    assert [f"{float(metric.split()[-1]):.4f}" for metric in metrics] == [loss] * len(metrics)
    panel = next(line for line in watched(log).splitlines() if " loss " in line)
    assert f" {loss} mean " in panel
    page = [line for line in watched(log, choice=Choice(reader_name(log), is_open=True)).splitlines() if line.startswith("loss")]
    assert page[0].split()[-1] == loss
    rows = [line for line in watched(log, runs=20).splitlines() if loss in line]
    assert len(rows) == 20


def reader_name(log: Path) -> str:
    logs = reader.Logs([str(log)], RunFacts())
    logs.look()
    return logs.views[0].name


def test_an_ending_is_the_same_in_the_header_the_table_and_the_events(tool: Any, tmp_path: Path) -> None:
    """An exception that the first attempt survived ended nothing; what has no cause in its own attempt follows nothing."""
    caught = "Traceback (most recent call last):\n  File 'x.py', line 3, in <module>\nValueError: caught\n"
    log = tmp_path / "a.log"
    first = ARGUMENTS + steps(1, 2) + caught + steps(3, 4) + FAILURE + EXITED
    log.write_text(first + ARGUMENTS + steps(4, 5, 6) + EXITED)
    page = report(tool, log)
    assert "· ended: failed: exit ·" in page
    assert re.search(r"1 [^A-Z]*1 to 4 \d* ?failed: out-of-memory 2 [^A-Z]*4 to 6 failed: exit", page), page
    assert "root cause out-of-memory 1" in page
    assert re.search(r"follows exit 1 ", page)
    assert re.search(r"ended it exit 2 ", page)
    assert page.count("follows") == 1
    assert "failed: exit" in tool("summarize", "a.log").stdout
    assert "failed: exit" in tool("runs", "a.log").stdout
    screens = watched(log) + watched(log, choice=Choice(reader_name(log), is_open=True))
    assert screens.count("ended: failed: exit") == 2
    assert re.search(r"\n1 .*1 to 4 +failed: out-of-memory", screens)
    assert re.search(r"\n2 .*4 to 6 +failed: exit", screens)


@pytest.mark.parametrize(
    ("content", "activity"),
    [
        (ARGUMENTS, "printed its arguments"),
        (ARGUMENTS + "building GPT model ...\n" + HEADING, "building GPT model ..."),
        (
            "Loading checkpoint shards:  20%|##  | 1/5\rLoading checkpoint shards:  40%|####  | 2/5\r",
            "Loading checkpoint shards: 40%",
        ),
        ("\x1b[32m[rank0]: compiling the model\x1b[0m\n-----\n\n", "compiling the model"),
        (ARGUMENTS + Starting(14.5, "loading /fsx/iter_10").format() + "\nkernels: sdpa\n", "loading /fsx/iter_10"),
    ],
)
def test_a_run_before_its_first_step_is_starting_in_every_view(content: str, activity: str, tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(content)
    (summary,) = json.loads(tool("summarize", "--json", "a.log").stdout)["runs"]
    assert activity in " ".join(summary["starting"]["activity"].split())
    assert (summary["step"], summary["ended"], summary["silent"]) == (None, None, False)
    for text in (tool("summarize", "a.log").stdout, tool("runs", "a.log").stdout, report(tool, log), watched(log)):
        assert "starting" in text.lower()
        assert activity in " ".join(text.split())
    assert activity in " ".join(watched(log, choice=Choice(reader_name(log), is_open=True)).split())
    assert watched(log, runs=20).count(" starting ") in (0, 20)


def test_the_time_since_the_start_comes_from_lt_trains_log(tool: Any, tmp_path: Path) -> None:
    import datetime

    begun = datetime.datetime.now() - datetime.timedelta(seconds=600)
    (tmp_path / "a.log").write_text(ARGUMENTS + Starting(30.0, "preparing the data").format(begun) + "\n")
    (summary,) = json.loads(tool("summarize", "--json", "a.log").stdout)["runs"]
    assert 630 <= summary["starting"]["seconds"] < 660
    assert re.search(r"\nstarting +10 min \d+ s: preparing the data", tool("summarize", "a.log").stdout)
    assert "starting for 10 min" in watched(tmp_path / "a.log")


def test_a_start_that_went_silent_and_one_after_a_restart(tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(ARGUMENTS)
    os.utime(log, (time.time() - 3600,) * 2)
    (summary,) = json.loads(tool("summarize", "--json", "a.log").stdout)["runs"]
    assert (summary["silent"], summary["starting"]["activity"]) == (True, "printed its arguments")
    assert "silent since" in report(tool, log)
    log.write_text(ARGUMENTS + steps(1, 2, 3) + ARGUMENTS + "loading it again\n")
    (summary,) = json.loads(tool("summarize", "--json", "a.log").stdout)["runs"]
    assert (summary["step"], summary["starting"]["activity"]) == (3, "loading it again")


@pytest.mark.parametrize("failure", [FAILURE, "Traceback (most recent call last):\n  File 'x.py', line 3\nValueError: bad\n"])
def test_a_run_that_died_before_its_first_step_is_told_in_every_view(failure: str, tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(ARGUMENTS + failure)
    (summary,) = json.loads(tool("summarize", "--json", "a.log").stdout)["runs"]
    name = summary["fault"]["fault"]
    assert (summary["ended_text"], summary["starting"], summary["step"]) == (f"failed: {name}", None, None)
    for text in (tool("summarize", "a.log").stdout, tool("runs", "a.log").stdout, report(tool, log), watched(log)):
        assert f"failed: {name}" in text


def test_an_old_log_without_any_event_is_no_start(tool: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("hello there\n")
    os.utime(log, (0, 0))
    assert [tool(command, "a.log").returncode for command in ("summarize", "runs")] == [65, 65]
    log.write_text("hello there\n" * 30_000)
    assert tool("summarize", "a.log").returncode == 65
