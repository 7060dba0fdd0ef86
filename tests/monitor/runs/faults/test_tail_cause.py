"""Why a job ended, as `lt-monitor tail-cause` says it of logs that nobody here wrote, and of what may stand around a fault."""

import json
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failure_tally
import pytest

from lt_monitor.runs.faults.tail_cause import tail_cause

Tool = Callable[..., subprocess.CompletedProcess[str]]

STEP = " iteration {:8d}/     100 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | lm loss: 2.5E+00 |\n"
STEPS = "".join(map(STEP.format, (1, 2, 3)))
# NVIDIA's catalogue of Xids, as a kernel logs it; journalctl's prefix is of NVIDIA/open-gpu-kernel-modules#688.
XID = "Feb 17 08:02:06 {} kernel: NVRM: Xid (PCI:0000:06:00): 79, pid=1122, GPU has fallen off the bus.\n"
NCCL = "[rank{}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {}] Watchdog caught collective operation timeout: "
NCCL += "WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 milliseconds.\n"
WRONG = "lt-train: error:"
OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 22.19 GiB\n"
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
THREAD = 'Traceback (most recent call last):\n  File "q.py", line 1, in run\nBrokenPipeError: [Errno 32] Broken pipe\n'
GONE = "[rank{}]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
BUG = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: bad batch\n'


def cause_of(tool: Tool, tmp_path: Path, text: str, *names: str) -> tuple[dict[str, Any], int]:
    (tmp_path / "slurm-78.out").write_text(text)
    result = tool("tail-cause", "--json", *(names or ["slurm-78.out"]))
    assert result.stderr == ""
    return json.loads(result.stdout), result.returncode


@pytest.mark.parametrize("name", list(failure_tally.expected()))
def test_logs_of_others(name: str, tool: Tool, tmp_path: Path) -> None:
    # A new file: the age of a checkout says nothing about the job.
    (tmp_path / name).write_bytes((failure_tally.FAILURES / name).read_bytes())
    result = tool("tail-cause", "--json", name)
    cause = json.loads(result.stdout)
    assert (cause["fault"] or "none", result.returncode) == failure_tally.expected()[name]
    assert cause["fault"] is None or cause["advice"]


def test_every_log_has_its_source() -> None:
    sources = dict(line.split("\t") for line in (failure_tally.FAILURES / "SOURCES.tsv").read_text().splitlines()[1:])
    logs = {path.name for path in failure_tally.FAILURES.glob("*.log")}
    assert logs == set(sources) == set(failure_tally.expected())
    assert len(logs) >= 50
    assert sum(fault == "none" for fault, _ in failure_tally.expected().values()) >= 12


def test_the_line_says_where_and_what_to_do(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "slurm-78.out").write_text(STEPS + XID.format("ip-10-1-2-3") + GONE.format(1))
    result = tool("tail-cause", "slurm-78.out")
    assert result.returncode == 69
    assert result.stdout == (
        "xid: node ip-10-1-2-3: NVRM: Xid (PCI:0000:06:00): 79, pid=1122, GPU has fallen off the bus. (slurm-78.out:4); "
        "exclude the node and have its GPU replaced\n"
    )


def test_json_names_the_line(tool: Tool, tmp_path: Path) -> None:
    cause, code = cause_of(tool, tmp_path, STEPS + OOM + NCCL.format(0, 0, 7))
    assert (code, cause["action"], cause["fault"], cause["cause"], cause["severity"]) == (
        78,
        "stop",
        "out-of-memory",
        "root",
        "critical",
    )
    assert (cause["ranks"], cause["nodes"], cause["last_step"]) == ([3], [], 3)
    assert (cause["file"], cause["line"], cause["offset"]) == ("slurm-78.out", 4, len(STEPS))
    assert cause["text"] == OOM.rstrip("\n")


@pytest.mark.parametrize("order", [1, -1])
def test_what_explains_the_rest_comes_first_in_any_order(order: int, tool: Tool, tmp_path: Path) -> None:
    lines = [XID.format("n7"), NCCL.format(0, 0, 7), GONE.format(1), BUG, "srun: error: n7: task 1: Exited with exit code 1\n"]
    cause, code = cause_of(tool, tmp_path, STEPS + "".join(lines[::order]))
    assert (cause["fault"], cause["nodes"], code) == ("xid", ["n7"], 69)


def test_a_node_failure_that_slurm_notices_late(tool: Tool, tmp_path: Path) -> None:
    """The line is of NVIDIA/pyxis and SchedMD's srun.c; nebius/soperator#854 has salloc's."""
    text = STEPS + GONE.format(0) + BUG + NCCL.format(2, 2, 5) + "srun: error: Node failure on ip-10-1-2-9\n"
    cause, code = cause_of(tool, tmp_path, text + "srun: error: ip-10-1-2-3: task 0: Killed\n")
    assert (cause["fault"], cause["nodes"], code) == ("node-failure", ["ip-10-1-2-9"], 69)


@pytest.mark.parametrize(
    ("text", "fault", "code"),
    [
        (STEPS, None, 0),
        (BUG + STEPS, None, 0),
        (STEPS + BUG, "traceback", 78),
        (STEPS + BUG + STEP.format(4) + "srun: error: n1: task 0: Exited with exit code 1\n", "traceback", 78),
        (STEPS + BUG + STEP.format(4) + STEP.format(5), None, 0),
        (STEPS + "Training finished\n" + GONE.format(0), None, 0),
        (STEPS + "Training finished\nOSError: [Errno 28] No space left on device\n", "disk-full", 78),
        (
            STEPS
            + 'Exception in thread Thread-3:\nTraceback (most recent call last):\n  File "q.py", line 1\nBrokenPipeError: x\n',
            None,
            0,
        ),
        (
            STEPS + "Exception ignored in: <function F.__del__ at 0x7f>\nTraceback (most recent call last):\nTypeError: x\n",
            None,
            0,
        ),
        (STEPS + "/x/cuda.py:12: UserWarning: CUDA error: out of memory (Triggered internally)\n", None, 0),
        (STEPS + "[rank0]:[W226 02:07:08.4 ProcessGroupNCCL.cpp:1] NCCL error in: x, invalid usage\n", None, 0),
        (STEPS + "wandb: ERROR Error while calling W&B API: internal error (<Response [500]>)\n", None, 0),
        (STEPS + "wandb.errors.CommError: api.wandb.ai: Max retries exceeded\n", None, 0),
        (STEPS + BUG + " [2026-08-25] > setting tensorboard ...\nKilled\n", "traceback", 78),
        (STEPS + "Killed\n", "killed", 1),
        (STEPS + GONE.format(0), "traceback", 1),
    ],
)
def test_what_is_a_failure_and_what_is_none(text: str, fault: str | None, code: int, tool: Tool, tmp_path: Path) -> None:
    cause, exit_code = cause_of(tool, tmp_path, text)
    assert (cause["fault"], exit_code) == (fault, code)


def test_bars_of_unknown_trainers_are_steps(tool: Tool, tmp_path: Path) -> None:
    bar = " 5%|x | {}/2724 [5:13:01<95:19:29, 132.86s/it]\r"
    cause, _ = cause_of(tool, tmp_path, bar.format(1) + BUG + bar.format(2) + bar.format(3))
    assert cause["fault"] is None
    cause, _ = cause_of(tool, tmp_path, bar.format(1) + bar.format(2) + bar.format(3) + "\n" + BUG)
    assert cause["fault"] == "traceback"


def test_a_hang_that_the_time_limit_ended_names_the_suspect(tool: Tool, tmp_path: Path) -> None:
    waiting = "".join(NCCL.format(rank, rank, 7 if rank == 2 else 8) for rank in range(4))
    limit = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    cause, code = cause_of(tool, tmp_path, STEPS + waiting + limit)
    assert (cause["fault"], cause["ranks"], code) == ("nccl-timeout", [2], 1)
    cause, code = cause_of(tool, tmp_path, STEPS + limit + BUG + waiting)
    assert (cause["fault"], code) == ("time-limit", 75)


def test_steps_between_the_time_limit_and_the_kill_hide_nothing(tool: Tool, tmp_path: Path) -> None:
    """A trainer that ignores SIGTERM makes steps until Slurm kills it; a later attempt of the same log makes more."""
    bar = "Epoch 10:  93%|x | {}/20000 [5:43:21<25:19,  0.90it/s]\n"
    limit = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    cause, code = cause_of(tool, tmp_path, bar.format(1) + bar.format(2) + limit + bar.format(3) + bar.format(4) + bar.format(5))
    assert (cause["fault"], code) == ("time-limit", 75)
    cause, _ = cause_of(tool, tmp_path, limit + "".join(map(bar.format, range(400))))
    assert cause["fault"] is None


def test_logs_of_ranks_are_one_job(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "slurm-1_0.out").write_text(STEPS + GONE.format(0) + NCCL.format(0, 0, 7))
    (tmp_path / "slurm-1_1.out").write_text(STEPS + "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    (tmp_path / "kernel.txt").write_text(XID.format("n8"))
    cause, code = cause_of(tool, tmp_path, "", "slurm-1_*.out")
    assert (cause["fault"], cause["ranks"], cause["file"], code) == ("ecc", [1], "slurm-1_1.out", 69)
    cause, _ = cause_of(tool, tmp_path, "", "kernel.txt", "slurm-1_0.out")
    assert (cause["fault"], cause["nodes"]) == ("xid", ["n8"])


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (XID.format("n7") + XID.format("n3"), "--exclude=n3,n7\n"),
        ("[n9:3]:[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "--exclude=n9\n"),
        # srun --label's task, and whose node that is.
        (
            ECC.replace("[rank3]", "3", 1) + "srun: error: n5: tasks 2-3: Exited with exit code 1\n",
            "--exclude=n5\n",
        ),
        (
            ECC + "Root Cause (first observed failure):\n[0]:\n"
            "  time      : 2024-08-17_13:24:04\n  host      : n6\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 26)\n",
            "--exclude=n6\n",
        ),
        # Another rank's node is not guessed to be that of rank 3.
        (
            ECC + "srun: error: n5: task 0: Exited with exit code 1\n",
            "",
        ),
        # A log without ranks: the node of the only task that failed.
        (ECC.replace("[rank3]: ", "") + "srun: error: n5: task 0: Exited with exit code 1\n", "--exclude=n5\n"),
        (ECC.replace("[rank3]: ", "") + "srun: error: n5: tasks 0-1: Exited with exit code 1\n", ""),
        (OOM, ""),
        (STEPS, ""),
        (
            f"{WRONG} rank 5 on n4: computed step 200 twice, and the results differ: the gradient of w\n",
            "--exclude=n4\n",
        ),
        (f"{WRONG} rank 5 on n4: holds at step 200 other weights than the 7 ranks that share them\n", "--exclude=n4\n"),
        # One of several, and which one is not known.
        (
            f"{WRONG} rank 1 on n4: computed step 8 twice, and the results differ: the loss; so do those of ranks 2: o\n",
            "",
        ),
        (
            f"{WRONG} rank 1 on n4: computed step 8 twice, and the results differ: the loss; so do those of ranks 2: o\n"
            "srun: error: n4: task 1: Exited with exit code 1\n",
            "",
        ),
        (
            f"{WRONG} rank 0 on n4: at step 8 the weights of ranks that share them differ, and no majority says whose\n",
            "",
        ),
    ],
)
def test_the_nodes_to_exclude(text: str, printed: str, tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "slurm-78.out").write_text(STEPS + text)
    assert tool("tail-cause", "--exclude-node", "slurm-78.out").stdout == printed


def test_standard_input(tool: Tool) -> None:
    result = tool("tail-cause", "-", stdin=STEPS + OOM)
    assert (result.returncode, result.stdout.startswith("out-of-memory: rank 3: ")) == (78, True)
    assert tool("tail-cause", "-", stdin="").returncode == 66


def test_secrets_are_covered(tool: Tool) -> None:
    result = tool("tail-cause", "--json", "-", stdin="ValueError: cannot reach https://me:hunter22secret@example.com/x\n")
    assert "hunter22secret" not in result.stdout


def test_a_loss_that_is_no_number(tool: Tool, tmp_path: Path) -> None:
    """Megatron-LM counts such steps and prints no loss; others print it."""
    for change in ("lm loss: nan |", "number of nan iterations:   1 |"):
        text = "".join(STEP.format(step).replace("lm loss: 2.5E+00 |", change) for step in range(1, 6))
        cause, code = cause_of(tool, tmp_path, text)
        assert (cause["fault"], code) == ("nan", 78)

    # OpenNMT-py#1072, PaddleNLP#9693 and LlamaFactory#2916.
    text = "".join(f"[INFO] Step 55{step}0/50000; acc:   0.19; ppl:   nan; xent:  nan; lr: 0.00070\n" for step in range(5))
    found, code = cause_of(tool, tmp_path, text)
    assert (found["fault"], code) == ("nan", 78)
    for line in ("loss: nan, learning_rate: 1e-05, global_step: {}0\n", "{{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.0{}}}\n"):
        found, code = cause_of(tool, tmp_path, "".join(map(line.format, range(1, 6))))
        assert (found["fault"], code) == ("nan", 78)
    found, _ = cause_of(tool, tmp_path, "".join(f"{{'loss': 0.0, 'grad_norm': 0.1, 'epoch': 0.0{n}}}\n" for n in range(1, 6)))
    assert found["fault"] is None


def test_a_run_that_was_asked_to_end_starts_again(tool: Tool, tmp_path: Path) -> None:
    cause, code = cause_of(tool, tmp_path, STEPS + "exiting program after receiving SIGTERM.\n")
    assert (cause["fault"], cause["action"], code) == (None, "again", 75)


def test_a_new_attempt_forgets_the_failure_before(tool: Tool, tmp_path: Path) -> None:
    start = "[after megatron is initialized] datetime: 2026-08-25 19:54:10 \n"
    cause, code = cause_of(tool, tmp_path, STEPS + BUG + start + "time to initialize megatron (seconds): 15.424\n" + OOM)
    assert (cause["fault"], code) == ("out-of-memory", 78)


@pytest.mark.parametrize(("text", "fault", "code"), [("Killed\n", "killed", 1), ("MemoryError\n", "host-out-of-memory", 78)])
@pytest.mark.parametrize(
    "label",
    [
        *("train-worker-0 pytorch ", "default train-worker-0 pytorch ", "train-worker-0 \u203a pytorch ", "trainer/0 "),
        *("trainer-1  | ", "train.1.abc123@n7    | ", "10.0.0.3: ", "[pod/train-0/pytorch] ", "[1,0]<stderr>: ", "3: "),
        *("[rank3]: ", "[default3]:", "2026-11-01T10:00:00.123456789Z ", "[2026-11-01 10:00:00] ", "[gpu-0] "),
        *("(task, pid=123) ", "(worker1, rank=1, pid=123, ip=10.0.0.4) ", "train\tRun\t2026-11-01T10:00:00.1234567Z "),
    ],
)
def test_labels_of_a_log_of_a_few_lines(label: str, text: str, fault: str, code: int, tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    for lines in ([text], ["starting\n", text]):
        log.write_text("".join(label + line for line in lines))
        cause = tail_cause([str(log)])
        assert (cause.fault, failure_tally.CODES[cause.action]) == (fault, code), lines


def test_ctrl_c_is_a_request_to_end(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(BUG.replace("ValueError: bad batch", "KeyboardInterrupt"))
    cause = tail_cause([str(log)])
    assert (cause.fault, failure_tally.CODES[cause.action]) == ("killed", 75)


def test_more_logs_than_a_process_may_open(tmp_path: Path) -> None:
    for number in range(200):
        text = "Killed\n" if number == 150 else " iteration 1/ 10 | elapsed time per iteration (ms): 1.0 | lm loss: 2.0E+00 |\n"
        (tmp_path / f"rank_{number}.log").write_text(f"begins\n{text}")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 100, limits[1]))
    try:
        cause = tail_cause([str(tmp_path)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (cause.fault, Path(cause.file or "").name, cause.line) == ("killed", "rank_150.log", 2)
