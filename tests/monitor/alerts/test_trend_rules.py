"""Slow divergence without false alarms, restarts that fail again, and ranks that wait for one."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.alerts import trend_rules
from lt_monitor.alerts.thresholds import Thresholds
from lt_monitor.runs import run_loader
from lt_monitor.runs.loss_trend import LossTrend
from lt_monitor.runs.run_state import RunState
from lt_shared.contracts import run_log

SAMPLES = Path(__file__).parents[1] / "samples"
LIMITS = Thresholds({})
HEADING = "------------------------ arguments ------------------------\n  train_iters ..................................... 90\n"
ARGUMENTS = f"{HEADING}-------------------- end of arguments ---------------------\n"


def divergences(losses: list[float], interval: int = 1) -> list[int]:
    """The steps at which a run with these losses was found to diverge."""
    state, steps = RunState("a"), []
    for index, loss in enumerate(losses):
        record = {"kind": "step", "run": "a", "step": (index + 1) * interval, "loss": loss, "src": {"file": "a", "offset": index}}
        state.take(record, 0.0)
        steps += [finding.fields["step"] for finding in trend_rules.divergence(state, record, LIMITS)]
    return steps


def sample_shapes() -> list[list[float]]:
    """The loss curves of the samples: beginnings and whole runs of several trainers."""
    runs = run_loader.read([str(SAMPLES / name) for name in ("story.jsonl", "lt_train.log", "megatron_old.log")])
    return [[float(loss) for loss in run.steps.finite("loss")[1]] for run in runs]


SHAPES = sample_shapes()


def stretched(shape: list[float], length: int) -> list[float]:
    """The shape of a sample over `length` lines."""
    last = len(shape) - 1
    places = [index * last / (length - 1) for index in range(length)]
    return [shape[int(place)] * (1 - place % 1) + shape[min(last, int(place) + 1)] * (place % 1) for place in places]


def healthy(seed: int) -> list[float]:
    """A healthy curve: a sample's shape with noise, and one of the things that happen to healthy runs."""
    chance = random.Random(seed)
    length = chance.randrange(1500, 8000)
    losses = stretched(chance.choice(SHAPES), length)
    noise = chance.choice([0.005, 0.02, 0.08])
    losses = [loss * (1 + chance.gauss(0, noise)) for loss in losses]
    event, begin = seed % 7, chance.randrange(length // 4, length // 2)
    for index in range(begin, length):
        since = index - begin
        if event == 1:
            # Other data: a jump that recovers.
            losses[index] += 1.2 * 0.5 ** (since / (length / 12))
        elif event == 2:
            # Other data: a jump to a level that stays.
            losses[index] += 0.8
        elif event == 3:
            # A learning rate that warms up again.
            losses[index] += 0.25 * min(since, length // 10) / (length // 10) * 0.5 ** (since / (length / 4))
        elif event == 4 and chance.random() < 0.01:
            losses[index] *= 5
        elif event == 5:
            # Epochs of a small corpus.
            losses[index] += 0.15 * ((since * 6 // length) % 2)
        elif event == 6:
            # A slow spike, over hundreds of lines, that recovers.
            width = length / 10
            losses[index] += max(0.0, 1.5 - abs(since - width) / width * 1.5)
    return losses


@pytest.mark.parametrize("seed", range(105))
def test_healthy_curves_are_no_divergence_at_their_end(seed: int) -> None:
    losses = healthy(seed)
    found = divergences(losses)
    # A rise that later recovers is one while it lasts.
    assert not found or (seed % 7 == 6 and max(found) < 0.8 * len(losses)), found


@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.06])
@pytest.mark.parametrize("lines", [3000, 9000])
def test_a_loss_that_rises_through_thousands_of_steps(lines: int, noise: float, interval: int) -> None:
    chance = random.Random(lines)
    falling = [2.5 + 6 * 0.5 ** (index / 150) for index in range(lines // 2)]
    rising = [2.5 + 1.5 * index / lines for index in range(lines)]
    losses = [loss * (1 + chance.gauss(0, noise)) for loss in falling + rising]
    found = divergences(losses, interval)
    assert found
    assert len(losses) // 3 * interval < found[0] < len(losses) * interval


def test_a_divergence_is_told_once_and_is_a_warning(tool: Any, tmp_path: Path) -> None:
    losses = [2.5 + 6 * 0.5 ** (index / 100) for index in range(1000)] + [2.5 + index / 2000 for index in range(3000)]
    lines = [run_log.Step(index + 1, 9000, loss=loss, step_seconds=1.0).format() for index, loss in enumerate(losses)]
    log = tmp_path / "a.log"
    log.write_text("".join(f"{line}\n" for line in lines[:2500]))
    first = tool("alert", "--state", "s", "a.log")
    log.write_text("".join(f"{line}\n" for line in lines))
    second = tool("alert", "--state", "s", "a.log")
    told = [line for line in (first.stdout + second.stdout).splitlines() if "divergence" in line]
    assert len(told) == 1
    assert told[0].startswith("WARNING divergence a: step ")
    assert "the loss has risen from 2.5" in told[0]
    assert first.returncode == 1


def test_a_restart_from_before_the_rise_forgets_it() -> None:
    state = RunState("a")
    losses = [(step, 2.0) for step in range(1, 2001)] + [(step, 2.0 + step / 2000) for step in range(2001, 5001)]
    found = []
    for number, (step, loss) in enumerate(losses + [(step, 2.0) for step in range(1500, 4000)]):
        record = {"kind": "step", "run": "a", "step": step, "loss": loss, "src": {"file": "a", "offset": number}}
        state.take(record, 0.0)
        if number >= len(losses):
            found += list(trend_rules.divergence(state, record, LIMITS))
    assert found == []
    assert state.loss_trend is not None and state.loss_trend.buckets[-1][0] < 4000


def test_the_state_of_a_long_run_stays_small() -> None:
    state = RunState("a", loss_trend=LossTrend())
    assert state.loss_trend is not None
    for step in range(1, 100_001):
        state.loss_trend.take(step, [2.0])
    assert len(state.loss_trend.buckets) < 64
    assert RunState.from_record(json.loads(json.dumps(state.to_record()))).loss_trend == state.loss_trend


def steps(*numbers: int) -> str:
    return "".join(f"{run_log.Step(step, 90, loss=2.0, step_seconds=1.0).format()}\n" for step in numbers)


OOM = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 GiB\n"
BAD = "Traceback (most recent call last):\n  File 'x.py', line 3, in <module>\nValueError: sample 12 of shard 7 at 0x7f3 is bad\n"
OTHER = "Traceback (most recent call last):\n  File 'x.py', line 3, in <module>\nKeyError: 'tokens'\n"
NETWORK = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
NETWORK = f"Traceback (most recent call last):\n  File 'x.py', line 3, in <module>\n{NETWORK}"
STALE = "OSError: [Errno 116] Stale file handle: '/fsx/data/a.bin'\n"
STALE = f"Traceback (most recent call last):\n  File 'x.py', line 3, in <module>\n{STALE}"
LIMIT = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-18T10:00:00 DUE TO TIME LIMIT ***\n"
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("first", "second", "is_repeated"),
    [
        (steps(1, 2, 3) + OOM.format(3, 9), steps(2, 3) + OOM.format(5, 8), True),
        (steps(1, 2, 3) + OOM.format(3, 9), steps(2, 3, 4) + OOM.format(3, 9), False),
        (steps(1, 2, 3) + BAD, steps(2, 3) + BAD.replace("12", "13"), True),
        (steps(1, 2, 3) + BAD, steps(2, 3) + OTHER, False),
        (steps(1, 2, 3) + BAD, steps(2, 3), False),
        (BAD, BAD, True),
        (steps(1, 2, 3) + LIMIT, steps(2, 3) + LIMIT, False),
        (steps(1, 2, 3) + STALE, steps(2, 3) + STALE, True),
    ],
)
def test_a_restart_that_fails_as_the_one_before(first: str, second: str, is_repeated: bool, tool: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(ARGUMENTS + first + ARGUMENTS + second)
    done = tool("alert", "--json", "a.log")
    found = [one for one in map(json.loads, done.stdout.splitlines()) if one["rule"] == "repeated-failure"]
    assert len(found) == is_repeated
    if is_repeated:
        assert done.returncode == 3
        assert "attempts 1 and 2 both failed" in found[0]["message"] and "stop instead of restarting" in found[0]["message"]
        assert found[0]["fields"]["before"]["fault"] == found[0]["fields"]["fault"]
        (tmp_path / "a.log").write_text(ARGUMENTS + first + ARGUMENTS + steps(2, 3, 4, 5) + ARGUMENTS + second)
        assert "repeated-failure" not in tool("alert", "a.log").stdout


def test_tail_cause_stops_a_job_that_would_be_started_again(tool: Any, tmp_path: Path) -> None:
    once = ARGUMENTS + steps(1, 2, 3) + STALE
    (tmp_path / "a.log").write_text(once)
    assert tool("tail-cause", "a.log").returncode == 75
    (tmp_path / "a.log").write_text(once + ARGUMENTS + steps(2, 3) + STALE)
    again = tool("tail-cause", "--json", "a.log")
    cause = json.loads(again.stdout)
    assert (again.returncode, cause["action"], cause["fault"]) == (78, "stop", "filesystem")
    assert cause["advice"].startswith("stop: the attempt before failed in the same way at the same step (a.log:")
    line = int(cause["advice"].partition("a.log:")[2].partition(")")[0])
    assert "Stale file handle" in "".join(once.splitlines()[line - 1 : line + 2])
    (tmp_path / "a.log").write_text(once + ARGUMENTS + steps(2, 3, 4) + STALE)
    assert tool("tail-cause", "a.log").returncode == 75


def timers(step: int, slow: float, rank: int = 3, form: str = "all", name: str = "forward-compute") -> str:
    line = run_log.Step(step, 900, loss=2.0, step_seconds=1.0).format()
    if form == "all":
        times = "".join(f"     rank{number:3d}: {slow if number == rank else 300.0:.2f}\n" for number in range(5))
        return f"{line}\ntimes across ranks (ms):\n  {name}:\n{times}"
    return f"{line}\n(min, max) time across ranks (ms):\n    {name} ................................: (300.00, {slow:.2f})\n"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([(800, 3)] * 6, "rank 3 needs 0.8 s for forward-compute, the fastest rank 0.3 s, of 1 s a step"),
        ([(800, 3)] * 4, None),
        ([(800, 3), (320, 3)] * 4, None),
        ([(800, 3), (800, 2)] * 4, None),
        ([(400, 3)] * 9, None),
    ],
)
def test_ranks_that_wait_for_one(tables: list[tuple[float, int]], said: str | None, tool: Any, tmp_path: Path) -> None:
    text = "".join(timers(step, slow, rank) for step, (slow, rank) in enumerate(tables, 1))
    (tmp_path / "a.log").write_text(ARGUMENTS + text + steps(50))
    found = [line for line in tool("alert", "a.log").stdout.splitlines() if "rank-wait" in line]
    assert found == ([f"WARNING rank-wait a: {said}"] if said else [])


def test_ranks_of_a_pipeline_differ_and_a_table_without_ranks_names_none(tool: Any, tmp_path: Path) -> None:
    for name, size, said in (("forward-compute", 1, 1), ("forward-compute", 2, 0), ("batch-generator", 2, 1)):
        text = "".join(timers(step, 800.0, form="minmax", name=name) for step in range(1, 7))
        arguments = ARGUMENTS.replace(
            "  train_iters", f"  pipeline_model_parallel_size .................... {size}\n  train_iters"
        )
        (tmp_path / "a.log").write_text(arguments + text + steps(50))
        found = [line for line in tool("alert", "a.log").stdout.splitlines() if "rank-wait" in line]
        assert len(found) == said
        assert all(f"a rank needs 0.8 s for {name}" in line for line in found)
