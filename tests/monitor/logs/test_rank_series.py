"""Logs of one run's ranks under any name are one run with one finding, and runs of their own stay so."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lt_monitor.logs import rank_series
from lt_shared.contracts import run_log

HEADING = "------------------------ arguments ------------------------\n  world_size ...................................... {}\n"
END = "-------------------- end of arguments ---------------------\n"
OOM = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB\n"
TIMEOUT = (
    "[rank{0}]:[E1118 06:35:24.000000000 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=92, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds before timing "
    "out.\n"
)
NAMES: dict[str, Callable[[int], str]] = {
    "rank_0000.log": "rank_{0:04}.log".format,
    "worker-3/stderr": "worker-{0}/stderr".format,
    "torchrun": "attempt_0/{0}/stderr.log".format,
    "torchrun with a run id": "none_abc123/attempt_0/{0}/stderr.log".format,
    "node/rank": lambda rank: f"node{rank // 2}/rank_{rank}.log",
    "%j_%t": "77_{0}.out".format,
    "slurm-%j_%t": "slurm-77_{0}.out".format,
    "%x-%j-%2t": "gpt-77-{0:02}.out".format,
    "%j_%N": "77_n{0:03}.out".format,
    "slurm-%j.%N": "slurm-77.gpu-a-{0}.out".format,
    "%x-%N-%t": lambda rank: f"gpt-n{rank // 2}-{rank}.out",
    "pods of a stateful set": "gpt-{0}.log".format,
    "pods of PyTorchJob": lambda rank: "gpt-master-0.log" if rank == 0 else f"gpt-worker-{rank - 1}.log",
    "pods of an indexed job": lambda rank: f"gpt-{rank}-{'abcde' if rank % 2 else 'x7k2p'}.log",
    "pods of a job set": "gpt-workers-0-{0}-x{0}k2p.log".format,
    "hosts of AWS": lambda rank: f"ip-10-0-1-{rank + 20}.log",
    "numbered directories": "{0}/stdout.log".format,
    "numbers alone": "{0}.log".format,
    "out.3": "out.{0}".format,
    "train.log.3": "train.log.{0}".format,
    "job.%J.%t": "job.77.0.{0}".format,
    "stdout_3.txt": "stdout_{0}.txt".format,
    "mpirun --output-filename": "1/rank.{0}/stdout".format,
}


def steps(losses: tuple[float, ...] = (2.5, 2.4, 2.3, 2.2)) -> str:
    lines = (run_log.Step(step, 90, loss=loss, step_seconds=1.0).format() for step, loss in enumerate(losses, 1))
    return "".join(f"{line}\n" for line in lines)


def content(rank: int, failed: int = 2) -> str:
    """Rank 0 prints the arguments, rank 3 the steps, one rank runs out of memory, and the others wait for it."""
    text = HEADING.format(16) + END if rank == 0 else steps() if rank == 3 else "some words\n"
    return text + (OOM if rank == failed else TIMEOUT).format(rank)


def write(folder: Path, contents: dict[str, str]) -> list[str]:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [str(folder / name) for name in contents]


@pytest.mark.parametrize("form", NAMES)
def test_any_naming_of_ranks_is_one_run_with_one_finding(form: str, tool: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "gpt", {NAMES[form](rank): content(rank) for rank in range(4)})
    for logs in (paths, paths[::-1], [str(tmp_path / "gpt")]):
        findings = [json.loads(line) for line in tool("alert", "--json", *logs).stdout.splitlines()]
        assert [(one["rule"], one["fields"]["rank"]) for one in findings] == [("out-of-memory", 2)]
        (summary,) = json.loads(tool("summarize", "--json", *logs).stdout)["runs"]
        assert (summary["step"], summary["loss"]) == (4, 2.2)
        assert len({json.loads(line)["run"] for line in tool("scrape", *logs).stdout.splitlines()}) == 1


@pytest.mark.parametrize(
    "contents",
    [
        # A sweep: other losses under the same names
        {"run-0.log": steps(), "run-1.log": steps((2.5, 2.3, 2.2, 2.1))},
        # Tasks of an array on one GPU each, without a word about ranks
        {"slurm-77_0.out": steps(), "slurm-77_1.out": "Traceback (most recent call last):\nValueError: x\n"},
        {"gpt-0.log": steps() + OOM.format(0), "gpt-1.log": steps((3.0, 2.9, 2.8)) + OOM.format(0)},
        # Jobs, each with its own arguments
        {"gpt-1.log": HEADING.format(8) + END + steps(), "gpt-2.log": HEADING.format(8) + END + steps((2.5, 2.4, 2.3, 2.1))},
        {"slurm-7001.out": HEADING.format(8) + END + steps(), "slurm-7002.out": "words\n" + OOM.format(3)},
    ],
)
def test_runs_of_their_own_stay_so(contents: dict[str, str], tmp_path: Path) -> None:
    names = rank_series.run_names(write(tmp_path, contents))
    assert len(set(names.values())) == len(contents)


def test_two_logs_decide_that_a_thousand_are_runs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = write(tmp_path, {f"slurm-{job}.out": steps((2.5, 2.4, 2.3, 2.2 + job)) for job in range(30)})
    opened: list[str] = []
    open_log = rank_series.log_files.open_log
    monkeypatch.setattr(rank_series.log_files, "open_log", lambda path: opened.append(path) or open_log(path))
    assert len(set(rank_series.run_names(logs).values())) == 30
    assert len(opened) == 2


def test_two_jobs_with_their_ranks_are_two_runs(tool: Any, tmp_path: Path) -> None:
    other = {f"slurm-78_{rank}.out": (steps((3.0, 2.9, 2.8)) if rank == 0 else "") + TIMEOUT.format(rank) for rank in range(4)}
    paths = write(tmp_path, {f"slurm-77_{rank}.out": content(rank) for rank in range(4)} | other)
    names = rank_series.run_names(paths)
    assert list(dict.fromkeys(names.values())) == [str(tmp_path / "slurm-77_0"), str(tmp_path / "slurm-78_0")]
    assert len(tool("alert", *paths).stdout.splitlines()) == 2


def test_every_rank_with_the_same_steps_is_one_run(tmp_path: Path) -> None:
    paths = write(tmp_path, {f"gpt-{node}.log": HEADING.format(16) + END + steps() for node in range(4)})
    assert set(rank_series.run_names(paths).values()) == {str(tmp_path / "gpt-0")}


def test_the_name_of_a_run_does_not_change_as_its_logs_grow(tool: Any, tmp_path: Path) -> None:
    """The state of alert is by the run's name: another name would leave a run behind that seems to hang."""
    paths = write(tmp_path, {"gpt-0.log": HEADING.format(16) + END + steps(), "gpt-1.log": "words\n", "gpt-2.log": ""})
    first = rank_series.run_names(paths)[paths[0]]
    tool("alert", "--state", "s", *paths)
    write(tmp_path, {"gpt-1.log": "words\n" + TIMEOUT.format(1), "gpt-2.log": OOM.format(2)})
    assert set(rank_series.run_names(paths).values()) == {first}
    found = tool("alert", "--state", "s", *paths).stdout.splitlines()
    assert [line.split()[:2] for line in found] == [["CRITICAL", "out-of-memory"]]


def test_a_thousand_ranks_are_one_finding_and_their_cost_is_linear(tool: Any, tmp_path: Path) -> None:
    """The one that ran out of memory comes after hundreds of time-outs."""
    texts = {f"gpt-{rank:03}.log": content(rank, 200) for rank in range(1000)}
    paths = write(tmp_path, {name: text + "words\n" * 200 for name, text in texts.items()})
    seconds = {}
    for count in (250, 1000):
        begin = time.process_time()
        (finding,) = tool("alert", *paths[:count]).stdout.splitlines()
        seconds[count] = time.process_time() - begin
        assert finding.startswith("CRITICAL out-of-memory") and "; then nccl-timeout x" in finding
    assert seconds[1000] < 8 * seconds[250] + 1
