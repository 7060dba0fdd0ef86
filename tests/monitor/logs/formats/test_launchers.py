"""What launchers, shells, clouds and service managers report of a process that failed, as the end of a log.

Formats of lines are those of the program's source or of the public log named in the last column; names and numbers are our own.
"""

from pathlib import Path

import pytest
from cause_table import STEPS, Row, check_cause
from failure_tally import verdict

TRACE = 'Traceback (most recent call last):\n  File "/opt/train.py", line 9, in main\n    step()\n'
PADDLE = "Container rank 0 status failed cmd ['/opt/python', '-u', 'train.py'] code {} log ./log/workerlog.0\nenv {{'A': 'b'}}\n"
SUMMARY = "----------------------\nError Message Summary:\n----------------------\n"
UNIT = "Nov 29 12:00:00 n7 systemd[1]: train.service: "

REPORTS: list[Row] = [
    (PADDLE.format(-9), "killed", 1, "PaddlePaddle/PaddleOCR#11773"),
    (PADDLE.format(1), "exit", 1, "PaddlePaddle/Paddle#52213"),
    (
        "ERROR 2022-07-25 07:21:16,458 launch_utils.py:604] ABORT!!! Out of all 8 trainers, the trainer process with rank=[3] "
        "was aborted. Please check its log.\n",
        "exit",
        1,
        "PaddlePaddle/Paddle#44583",
    ),
    (
        f"C++ Traceback (most recent call last):\nNo stack trace.\n\n{SUMMARY}FatalError: `Segmentation fault` is detected "
        "by the operating system.\n",
        "killed",
        1,
        "paddle/fluid/platform/init.cc",
    ),
    (SUMMARY + "FatalError: `Termination signal` is detected by the operating system.\n", "killed", 75, "paddle init.cc"),
    (
        SUMMARY + "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.2GB memory.\n",
        "out-of-memory",
        78,
        "",
    ),
    (
        "[rank: 1] Child process with PID 12 terminated with code -9. Forcefully terminating all others\n",
        "killed",
        1,
        "lightning",
    ),
    ("[rank: 1] Child process with PID 12 terminated with code 1. Forcefully terminating all others\n", "exit", 1, "lightning"),
    ("INFO: container failed with non-zero exit code: 1 (exit code 1)\n", "exit", 1, "determined-ai/determined#2275"),
    (
        "[2024-02-13 22:50:35] [2b9091c2] Resources failed with non-zero exit code: 80\n",
        "exit",
        1,
        "determined-ai/determined#8844",
    ),
    ("ERROR: Job failed: exit code 137\n", "killed", 1, "gitlab-runner"),
    ("ERROR: Job failed: exit code 1\n", "exit", 1, "gitlab-runner"),
    ("##[error]Process completed with exit code 1.\n", "exit", 1, "actions/runner"),
    (
        "[taskcluster 2023-12-07] Unsuccessful task run with exit code: 137 completed in 10.0 seconds\n",
        "killed",
        1,
        "taskcluster",
    ),
    (
        "The replica workerpool0-0 exited with a non-zero status of 137. To find out more look at its logs\n",
        "killed",
        1,
        "Vertex AI",
    ),
    ("Replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL).\n", "host-out-of-memory", 78, ""),
    ("ERROR: Job 1 failed with return code list: [0, 1] \n", "exit", 1, "skypilot"),
    ("ERROR: Job 3's setup failed with return code list: [137, 0]\n", "killed", 1, "skypilot"),
    ("2024-02-01 10:00:00,123 sagemaker-training-toolkit ERROR    ExecuteUserScriptError:\nExitCode 1\n", "exit", 1, ""),
    ("trainer-1 exited with code 1\n", "exit", 1, "docker compose"),
    ("trainer-1 exited with code 137\n", "killed", 1, "docker compose"),
    ("make: *** [Makefile:12: train] Error 1\n", "exit", 1, "GNU make"),
    ("make: *** [Makefile:12: train] Killed\n", "killed", 1, "GNU make"),
    ("Command exited with non-zero status 1\n0.02user 0.01system 0:00.03elapsed\n", "exit", 1, "GNU time"),
    ("Command terminated by signal 9\n0.02user 0.01system 0:00.03elapsed\n", "killed", 1, "GNU time"),
    ("TERM_PREEMPT: job killed after preemption.\nExited by signal 15.\n", "preemption", 75, "LSF"),
    ("TERM_OWNER: job killed by owner.\nExited with exit code 130.\n", "cancelled", 78, "LSF"),
    ("TERM_CPULIMIT: job killed after reaching LSF CPU usage limit.\nExited with exit code 140.\n", "time-limit", 75, "LSF"),
    ("=>> PBS: job killed: mem 60916kb exceeded limit 50000kb\n", "host-out-of-memory", 78, "OpenPBS"),
    ("=>> PBS: job killed: cput 43252 exceeded limit 43200\n", "time-limit", 75, "OpenPBS"),
    ("=   RANK 3 PID 9665 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)\n", "killed", 1, "Intel MPI"),
    ("pdsh@head: n1: ssh exited with exit code 1\n", "exit", 1, "pdsh"),
    (UNIT + "Main process exited, code=killed, status=9/KILL\n", "killed", 1, "systemd"),
    (UNIT + "Main process exited, code=exited, status=1/FAILURE\n", "exit", 1, "systemd"),
    (
        UNIT + "Main process exited, code=killed, status=9/KILL\n" + UNIT + "Failed with result 'oom-kill'.\n",
        "host-out-of-memory",
        78,
        "",
    ),
    (
        "Nov 29 12:00:00 n7 systemd-oomd[800]: Killed /user.slice/a.scope due to memory pressure for /user.slice\n",
        "host-out-of-memory",
        78,
        "systemd-oomd",
    ),
    ("Your notebook tried to allocate more memory than is available. It has restarted.\n", "host-out-of-memory", 78, "Kaggle"),
    ("Warning  BackoffLimitExceeded  2m  job-controller  Job has reached the specified backoff limit\n", "exit", 1, "Kubernetes"),
    ("zsh: killed     python train.py\n", "killed", 1, "zsh"),
    ("zsh: segmentation fault (core dumped)  python train.py\n", "killed", 1, "zsh"),
    ("[1]  + 12345 killed     python train.py\n", "killed", 1, "zsh"),
    ("[1]+  Killed                  nohup python train.py > log 2>&1\n", "killed", 1, "bash"),
    ("fish: Job 1, 'python train.py' terminated by signal SIGSEGV (Address boundary error)\n", "killed", 1, "fish"),
    ("srun: error: Timed out waiting for job step to complete\n", "exit", 1, "Slurm"),
    ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-10-10T00:00:00 by user 1000 ***\n", "cancelled", 78, "Slurm"),
    ("slurmstepd: error: something that no format knows\n", "exit", 1, "Slurm"),
    (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n',
        "configuration",
        78,
        "",
    ),
    ("FATAL:   container creation failed: mount /a->/b error: no such file or directory\n", "configuration", 78, "apptainer"),
    ("run.sh: line 12: MASTER_ADDR: unbound variable\n", "configuration", 78, "bash"),
    ("run.sh: line 12: syntax error near unexpected token `fi'\n", "configuration", 78, "bash"),
    ("/var/spool/slurmd/job1/slurm_script: line 3: ./run.sh: Permission denied\n", "configuration", 78, "bash"),
    ("Could not override 'model.foo'.\nKey 'foo' is not in struct\n", "configuration", 78, "hydra"),
    # A GUI says so of any end.
    (
        TRACE + "subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 3221225477.\n"
        "14:06:40-973914 INFO     Training has ended.\n",
        "traceback",
        1,
        "bmaltais/kohya_ss#2556",
    ),
    (
        "Exception in device=TPU:4: RESOURCE_EXHAUSTED: From /job:localservice/replica:0/task:0:\n",
        "out-of-memory",
        78,
        "torch_xla",
    ),
    (TRACE + "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n", "out-of-memory", 78, ""),
    (
        TRACE
        + "huggingface_hub.errors.LocalEntryNotFoundError: The file is not in the local cache. Please check your connection.\n",
        "network",
        75,
        "huggingface_hub",
    ),
]


@pytest.mark.parametrize("row", REPORTS)
def test_reports_name_the_end(row: Row, tmp_path: Path) -> None:
    check_cause(row, tmp_path)


@pytest.mark.parametrize("text", [text for text, fault, _, _ in REPORTS if fault in ("exit", "killed")])
def test_reports_explain_nothing_that_a_process_has_said(text: str, tmp_path: Path) -> None:
    assert verdict(tmp_path / "train.log", f"{STEPS}{TRACE}torch.OutOfMemoryError: CUDA out of memory.\n{text}") == (
        "out-of-memory",
        78,
    )


HARMLESS = [
    "trainer-1 exited with code 0\n",
    "Global rank 0 (PID 147193) exited with code 0\n",
    "INFO: container exited successfully with a zero exit code\n",
    "Process completed with exit code 0.\n",
    "SkyPilot: return code list: [0, 0]\n",
    "LAUNCH INFO 2023-06-02 09:58:00,100 Exit code 0\n",
    UNIT + "Deactivated successfully.\n",
    '\tCommand being timed: "python train.py"\n\tExit status: 0\n',
    "make: Nothing to be done for 'train'.\n",
    "[1]+  Done                    python train.py\n",
    "slurmd: exit code 0\n",
    STEPS + "0 errors, 0 timeouts, 0 killed workers\n",
    STEPS + "sample 1: the river was Killed by the king. Error: none of it.\n",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_reports_of_success_are_none(text: str, tmp_path: Path) -> None:
    assert verdict(tmp_path / "train.log", text) == (None, 0)


def test_paddle_stack_of_cpp_is_no_traceback(tmp_path: Path) -> None:
    stack = "--------------------------------------\nC++ Traceback (most recent call last):\n0   paddle::Run()\n"
    assert verdict(tmp_path / "train.log", stack + "trainer-1 exited with code 1\n") == ("exit", 1)


def test_gradients_without_a_norm_and_no_loss(tmp_path: Path) -> None:
    """bigscience-workshop/Megatron-DeepSpeed#396: a loss that is no number is left out."""
    line = " iteration {:8d}/  250000 | consumed samples: 43408 | elapsed time per iteration (ms): 4247.9 | grad norm: nan |\n"
    assert verdict(tmp_path / "train.log", "".join(map(line.format, range(5426, 5430)))) == ("nan", 78)
