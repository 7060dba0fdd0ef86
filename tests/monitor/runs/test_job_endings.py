"""How schedulers, containers, shells and launchers end a log, and which faults of servers pass by themselves.

Names are our own. The last column says whose line it is.
"""

from pathlib import Path

import pytest
from cause_table import STEPS, Row, check_cause
from failure_tally import verdict

from lt_monitor.collect.scrape import scrape
from lt_monitor.runs import run_loader

TRACE = 'Traceback (most recent call last):\n  File "/opt/train.py", line 9, in save\n    upload(path)\n'
OOM, OUT = "host-out-of-memory", "configuration"
EARLYOOM = 'sending SIGTERM to process 4 uid 1000 "python": badness 973, VmRSS 6012 MiB'
BOTO = "botocore.exceptions."
CODE = BOTO + "ClientError: An error occurred ({}) when calling the PutObject operation (reached max retries: 4): x"
ARROW = "OSError: When initiating multiple part upload for key 'x' in bucket 'b': AWS Error {} during HeadObject operation: x"
PYXIS = "slurmstepd: error: pyxis: child 4177 failed with error code: 1\nslurmstepd: error: pyxis: "
C10D = "[c10d] The server socket has failed to listen on [::]:29500 (errno: 98 - Address already in use)."

ENDINGS: list[Row] = [
    # Kubernetes
    ("train-0     0/1     Error    0          5h12m", "exit", 1, "kubectl get pods"),
    ("ml   train-0     0/1     CrashLoopBackOff    3 (12s ago)   5h12m", "exit", 1, "kubectl get pods -A"),
    ("train-0     0/1     ImagePullBackOff    0     5m", OUT, 78, "kubectl get pods"),
    ("train-0     0/1     Completed    0     5m", None, 0, "kubectl get pods"),
    ("train-0     1/1     Running    0     5m", None, 0, "kubectl get pods"),
    ("      Reason:       Error\n      Exit Code:    1", "exit", 1, "kubectl describe"),
    ("      Reason:       Completed\n      Exit Code:    0", None, 0, "kubectl describe"),
    ("      terminated:\n        exitCode: 137\n        reason: OOMKilled", OOM, 78, "kubectl get -o yaml"),
    ("Warning  DeadlineExceeded  1m  job-controller  Job was active longer than specified deadline", "time-limit", 75, "Job"),
    ("PyTorchJob gpt is failed because 1 Worker replica(s) failed.", "exit", 1, "Kubeflow"),
    # Killers of processes that use much memory
    (f"earlyoom[81]: {EARLYOOM}\nTerminated", OOM, 78, "earlyoom"),
    ("systemd-oomd[7]: Killed /user.slice/run.scope due to memory used (66) / total (67) being more than 90%", OOM, 78, "oomd"),
    ("[12.3] Out of memory: Kill process 4123 (python) score 973 or sacrifice child", OOM, 78, "Linux 4"),
    ("ray.exceptions.X: Task was killed due to the node running low on memory.", OOM, 78, "Ray"),
    ("\tError from slot1@n7: Job has gone over cgroup memory limit of 8192 megabytes.", OOM, 78, "HTCondor"),
    # Batch systems
    ("=>> PBS: job killed: node 3 (n17) requested job terminate, 'EOF' (code 1099)", "node-failure", 69, "Torque"),
    ("   Exit Status:        271 (Linux Signal 15 SIGTERM Termination)", "killed", 75, "PBS at NCI"),
    ("    Exit_status = 265", "killed", 1, "qstat -f"),
    ("   Exit Status:        0", None, 0, "PBS at NCI"),
    ("job 12.1 died through signal KILL (9)", "killed", 1, "Grid Engine"),
    ("failed       37  : qmaster enforced h_rt, h_cpu, or h_vmem limit\nexit_status  137", "time-limit", 75, "qacct"),
    ("User defined signal 2", "killed", 75, "Grid Engine's notice of the end, bash"),
    ("\t(0) Abnormal termination (signal 9)", "killed", 1, "HTCondor"),
    ("\t(1) Normal termination (return value 1)", "exit", 1, "HTCondor"),
    ("\t(1) Normal termination (return value 0)", None, 0, "HTCondor"),
    ("004 (12.000.000) 2024-05-01 10:11:12 Job was evicted.", "preemption", 75, "HTCondor"),
    ("State: FAILED (exit code 1)", "exit", 1, "seff"),
    ("State: OUT_OF_MEMORY (exit code 0)", OOM, 78, "seff"),
    ("State: TIMEOUT (exit code 0)", "time-limit", 75, "seff"),
    ("State: COMPLETED (exit code 0)", None, 0, "seff"),
    ("validation ended (exit code 0)", None, 0, "ours"),
    ("=>> PBS: job killed: ncpus 17.3 exceeded limit 16 (sum)", OUT, 78, "PBS"),
    ("CPU time limit exceeded (core dumped)", "time-limit", 75, "bash"),
    ("run.sh: line 7:  4321 CPU time limit exceeded (core dumped) python train.py", "time-limit", 75, "bash"),
    ("run.sh: line 7:  4321 File size limit exceeded(core dumped) python train.py", OUT, 78, "bash"),
    # bash's words for signals, which it fills up to 24 characters
    ("run.sh: line 7:  4321 Floating point exception(core dumped) python train.py", "killed", 1, "bash"),
    ("run.sh: line 7:  4321 Illegal instruction     (core dumped) python train.py", "killed", 1, "bash"),
    ("run.sh: line 7:  4321 Trace/breakpoint trap   (core dumped) python train.py", "killed", 1, "bash"),
    ("run.sh: line 7:  4321 Aborted                 (core dumped) python train.py", "killed", 1, "bash"),
    ("run.sh: line 7:  4321 Aborted                 python train.py", "killed", 1, "bash"),
    ("run.sh: Zeile 14: 28811 Getötet                 python train.py", "killed", 1, "bash in German"),
    (
        "run.sh: Zeile 14: 28811 Speicherzugriffsfehler  (Speicherabzug geschrieben) python train.py",
        "killed",
        1,
        "bash in German",
    ),
    ("run.sh: ligne 14 : 28811 Processus arrêté        python train.py", "killed", 1, "bash in French"),
    ("run.sh: 行 14: 28811 已杀死               python train.py", "killed", 1, "bash in Chinese"),
    ("/w/run.sh: fork: Resource temporarily unavailable", "launch", 75, "bash"),
    # Programs, modules and options that are not there
    ("/usr/bin/python3: No module named torch.distributed.run", OUT, 78, "Python"),
    ("bash: train.sh: No such file or directory", OUT, 78, "bash"),
    ("/usr/bin/env: 'python': No such file or directory", OUT, 78, "env"),
    ("python: /lib/libm.so.6: version `GLIBC_2.29' not found (required by /opt/x.so)", OUT, 78, "ld.so"),
    ("EnvironmentNameNotFound: Could not find conda environment: torch", OUT, 78, "conda"),
    ("Lmod has detected the following error: x\nsrun: error: n1: task 0: Exited with exit code 127", OUT, 78, "Lmod"),
    ("ERROR: Unable to locate a modulefile for 'cuda/12.9'", OUT, 78, "Environment Modules"),
    ("sbatch: unrecognized option '--gpuz=8'", OUT, 78, "getopt"),
    ("srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files", OUT, 78, "Slurm"),
    ("There are not enough slots available in the system to satisfy the 16\nslots that were requested", OUT, 78, "Open MPI"),
    ("Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding", OUT, 78, "Python"),
    (PYXIS + "failed to import docker image\nsrun: error: n1: task 0: Exited with exit code 1", OUT, 78, "pyxis"),
    (PYXIS + "couldn't start container\nsrun: error: n1: task 0: Exited with exit code 1", OUT, 78, "pyxis"),
    # Launchers and signals
    ("ERROR:  One or more process (first noticed rank 0) terminated with signal 11", "killed", 1, "jsrun"),
    ("ERROR:  One or more process (first noticed rank 3) terminated with signal 15", "killed", 75, "jsrun"),
    ("Aborted!", "exit", 1, "click"),
    ("Aborted.", "exit", 1, "typer"),
    ("prterun noticed that process rank 2 with PID 4 on node n7 exited on\nsignal 9 (Killed).", "killed", 1, "PRRTE"),
    ("2024-05-01 INFO cli.py:71 -- Job entrypoint command failed with exit code 1, last logs:", "exit", 1, "ray job submit"),
    (TRACE + "ray.exceptions.NodeDiedError: Task failed due to the node was dead.", "traceback", 1, "Ray"),
    ("Requeued SLURM job: 7\n[rank: 0] Received SIGUSR1: 10", "requeue", 75, "Lightning"),
    ("Detected KeyboardInterrupt, attempting graceful shutdown ...", "killed", 75, "Lightning"),
    (f"[W1130 03:12:01 socket.cpp:464] {C10D}", "rendezvous", 75, "PyTorch"),
    (f"[W1130 03:12:01 socket.cpp:464] {C10D}\n> initialized tensor model parallel", None, 0, "PyTorch"),
    # Servers
    (TRACE + CODE.format("InternalError"), "network", 75, "boto3"),
    (TRACE + CODE.format("AccessDenied"), "traceback", 78, "boto3"),
    (TRACE + BOTO + "ConnectionClosedError: Connection was closed", "network", 75, "boto3"),
    (TRACE + BOTO + "NoCredentialsError: Unable to locate credentials", "traceback", 78, "boto3"),
    (TRACE + ARROW.format("SLOW_DOWN"), "network", 75, "Arrow"),
    (TRACE + ARROW.format("ACCESS_DENIED"), "traceback", 78, "Arrow"),
    (TRACE + "google.api_core.exceptions.TooManyRequests: 429 POST https://x: rate", "network", 75, "Google Cloud"),
    (TRACE + "google.api_core.exceptions.Forbidden: 403 GET https://x: no access", "traceback", 78, "Google Cloud"),
    (TRACE + "azure.core.exceptions.ServiceResponseError: ('Connection aborted.', x)", "network", 75, "Azure"),
    (TRACE + "OSError: We couldn't connect to 'https://huggingface.co' to load the files", "network", 75, "transformers"),
    (TRACE + "huggingface_hub.errors.GatedRepoError: 401 Client Error.", "traceback", 78, "huggingface_hub"),
    (TRACE + "httpx.ReadError", "network", 75, "httpx"),
    (TRACE + "tarfile.ReadError: unexpected end of data", "traceback", 78, "tarfile"),
    (TRACE + "aiohttp.client_exceptions.SocketTimeoutError: Timeout on reading data", "network", 75, "aiohttp"),
    (TRACE + "fsspec.exceptions.FSTimeoutError", "network", 75, "fsspec"),
    (TRACE + "socket.timeout: The read operation timed out", "network", 75, "Python 3.9"),
    (TRACE + "requests.exceptions.SSLError: x (CERTIFICATE_VERIFY_FAILED)", OUT, 78, "requests"),
    ("curl: (6) Could not resolve host: huggingface.co", "network", 75, "curl"),
    ("fatal: unable to access 'https://x/': Could not resolve host: x", "network", 75, "git"),
    (TRACE + "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:", "network", 75, "gRPC"),
    (TRACE + "sqlite3.OperationalError: database or disk is full", "disk-full", 78, "SQLite"),
    ("ERROR: Unexpected segmentation fault encountered in worker.", "killed", 1, "torch's data loader"),
    # wandb: what ends a program has a traceback
    (TRACE + "wandb.errors.UsageError: api_key not configured (no-tty).", OUT, 78, "wandb"),
    (TRACE + "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", "network", 75, "wandb"),
    ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", None, 0, "wandb"),
    ("wandb: Network error (ReadTimeout), entering retry loop.", None, 0, "wandb"),
]


@pytest.mark.parametrize("row", ENDINGS)
def test_what_the_end_of_a_log_tells(row: Row, tmp_path: Path) -> None:
    check_cause(row, tmp_path, after_steps=True)


@pytest.mark.parametrize(
    ("losses", "fault", "code"), [("nan nan nan", "nan", 78), ("2.5 nan nan", None, 0), ("nan nan 2.5", None, 0)]
)
def test_losses_of_an_unknown_trainer_that_are_no_numbers(losses: str, fault: str | None, code: int, tmp_path: Path) -> None:
    text = "".join(f"step {step} loss {loss} grad_norm nan\n" for step, loss in enumerate(losses.split(), start=37))
    assert verdict(tmp_path / "train.log", text) == (fault, code)


@pytest.mark.parametrize("word", ["Killed", "Aborted", "Hangup"])
@pytest.mark.parametrize("label", ["", "[rank3]: "])
def test_all_commands_read_the_word_of_a_shell(word: str, label: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{STEPS}{label}{word}\n")
    (run,) = run_loader.read([str(log)])
    assert [record["fault"] for record in run.of_kind("fault")] == ["killed"]
    output = tmp_path / "events"
    with open(output, "w+b") as stream:
        scrape([str(log)], None, stream)
    assert b'"fault":"killed"' in output.read_bytes()
