"""A directory with a log for each rank is one run, however the ranks' logs are called."""

import json
from pathlib import Path
from typing import Any

import pytest

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TIME_OUT = (
    "[rank{rank}]:[E303 10:33:52.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1208, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800054 milliseconds before "
    "timing out.\n"
)
NAMINGS = [
    "rank_{}.log", "rank_{:04}.log", "rank{}.out", "rank-{}.txt", "rank{}", "worker-{}/stderr", "worker_{}/stdout.log",
    "node{}/rank_{}.log", "node{}/{}.log", "gpu{}.err", "gpt_rank{}.log", "node-{}-rank-{}.log", "local_rank_{}.log",
    "ip-10-1-2-{}/{}.log", "ip-10-1-2-{}/train.out", "nid00123{}/stderr",
    "node-{}/{}.log letters", "node_{}/rank{}.out letters",
    "hosts/{}.log", "hosts/stderr",
    "attempt_0/{}/stderr.log", "none_abc/attempt_0/{}/stderr.log", "RANK_{}.log", "master-0.log worker-{}.log",
]  # fmt: skip


def write_ranks(directory: Path, naming: str) -> None:
    for rank in range(4):
        text = f"[rank2]: {OUT_OF_MEMORY}\n" if rank == 2 else TIME_OUT.format(rank=rank)
        names = naming.removesuffix(" letters").replace("hosts", ("gold", "amber", "teal", "plum")[rank]).split()
        name = names[0] if rank == 0 else names[-1]
        node = "ab"[rank // 2] if naming.endswith("letters") else rank // 2
        path = directory / (name.format(node, rank % 2) if name.count("{") == 2 else name.format(rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("naming", NAMINGS)
def test_one_finding_for_the_cause(tool: Any, tmp_path: Path, naming: str) -> None:
    write_ranks(tmp_path / "logs", naming)
    done = tool("alert", "--json", "logs")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["rule"], one["severity"]) for one in findings] == [("out-of-memory", "critical")], done.stdout
    assert findings[0]["run"] == ("logs/gpt" if naming.startswith("gpt") else "logs/none_abc" if "none" in naming else "logs")
    assert done.returncode == 3


def test_directories_with_any_names_may_be_runs(tool: Any, tmp_path: Path) -> None:
    """Logs of the same rank, or without ranks, are several runs."""
    for name, rank in (("small", 0), ("large", 0)):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "stderr").write_text(TIME_OUT.format(rank=rank))
    done = tool("alert", "--json", "logs")
    assert {json.loads(line)["run"] for line in done.stdout.splitlines()} == {"logs/small", "logs/large"}, done.stdout


def test_steps_of_all_ranks_count_once(tool: Any, tmp_path: Path) -> None:
    for rank in range(3):
        lines = (f" iteration {step}/ 10 | elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |\n" for step in range(1, 6))
        (tmp_path / f"worker-{rank}").mkdir()
        (tmp_path / f"worker-{rank}" / "stdout").write_text("".join(lines))
    (tmp_path / "checkpoints" / "iter_0000005").mkdir(parents=True)
    (tmp_path / "checkpoints" / "iter_0000005" / "log").write_text("nothing of a rank\n")
    done = tool("summarize", "--json", ".")
    assert [run["step"] for run in json.loads(done.stdout)["runs"]] == [5], done.stdout
