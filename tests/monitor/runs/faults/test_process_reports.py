"""How kubectl, shells, C libraries, crash handlers and Slurm's daemons say that a program has ended, at the end of a log.

Names are our own. The last column says whose line it is.
"""

from pathlib import Path

import pytest
from cause_table import STEPS, Row, check_cause
from failure_tally import verdict

from lt_monitor.runs.faults import tail_cause

ELASTIC = (
    "E0902 15:10:49.013000 819010 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0 "
    "(pid: 819025) of binary: /opt/venv/bin/python"
)
ASSERTION = "python: /project/lib/Analysis/Allocation.cpp:43: mlir::triton::f(): Assertion `n > 0' failed."
BROKEN = "configuration"
JAVA = 'Exception in thread "main" java.lang.'

REPORTS: list[Row] = [
    # kubectl exec, with the numbers of any exit line
    *((f"command terminated with exit code {code}", "exit", 1, "kubectl") for code in (1, 2, 126, 127, 255)),
    *((f"command terminated with exit code {code}", "killed", 1, "kubectl") for code in (132, 134, 137, 139)),
    *((f"command terminated with exit code {code}", "killed", 75, "kubectl") for code in (129, 130, 138, 140, 143)),
    ("command terminated with exit code 0", None, 0, "kubectl"),
    ("error: command terminated with exit code 1", "exit", 1, "oc"),
    ("[rank3]: command terminated with exit code 139", "killed", 1, "kubectl"),
    ("Process finished with exit code 134 (interrupted by signal 6:SIGABRT)", "killed", 1, "PyCharm"),
    ("Process finished with exit code 1", "exit", 1, "PyCharm"),
    ("Process finished with exit code 0", None, 0, "PyCharm"),
    ("[1]+  Exit 1                  python train.py", "exit", 1, "bash"),
    ("[2]-  Exit 137                python train.py > log", "killed", 1, "bash"),
    ("[1]   Exit 127                torchrun train.py", "exit", 1, "bash"),
    ("[1]+  Done                    python train.py", None, 0, "bash"),
    ("[1]  + exit 1     python train.py", "exit", 1, "zsh"),
    # Containers
    ("Error: container exited with code 139", "killed", 1, "a container runtime"),
    ("Error: container 4f1c exited with code 143", "killed", 75, "a container runtime"),
    ("container exited with non-zero exit code: 1", "exit", 1, "a container runtime"),
    ("Container train terminated with exit code 137", "killed", 1, "a container runtime"),
    ("The container exited with status 2", "exit", 1, "a container runtime"),
    ("Container train exited with code 0", None, 0, "a container runtime"),
    # Assertions of C
    (ASSERTION, "killed", 1, "assert(3)"),
    (f"{ASSERTION}\n{ELASTIC}", "killed", 1, "assert(3), torchelastic"),
    ("python3: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av))' failed.", "killed", 1, "glibc"),
    ("Fatal glibc error: malloc.c:2599 (sysmalloc): assertion failed: (old_top == initial_top (av))", "killed", 1, "glibc 2.37"),
    ("python: ../nptl/pthread_mutex_lock.c:94: ___pthread_mutex_lock: Assertion `x->__owner == 0' failed.", "killed", 1, "glibc"),
    ("[rank2]: python: a.cc:3: int g(T) [with T = int]: Assertion `a' failed.", "killed", 1, "assert(3)"),
    ("Assertion failed: (n > 0), function g, file a.c, line 3.", "killed", 1, "macOS"),
    ("Assertion failed: n > 0 (a.c: main: 3)", "killed", 1, "musl"),
    ("/t/Indexing.cu:12: f: block: [0,0,0], thread: [3,0,0] Assertion `i < n` failed.", "cuda-error", 78, "CUDA"),
    # Handlers of signals, and programs that give up
    ("*** SIGSEGV received at time=1772532000 on cpu 3 ***", "killed", 1, "absl"),
    ("[2026-03-03 10:00:00,1 E 7 7] logging.cc:361: *** SIGABRT received at time=1772532000 on cpu 3 ***", "killed", 1, "Ray"),
    ("*** SIGTERM received at time=1772532000 on cpu 3 ***", "killed", 75, "absl"),
    ("*** SIGTERM received by PID 2211 (TID 2211) on cpu 3 from PID 1; stack trace: ***", "killed", 75, "absl"),
    *(
        (f"*** SIG{name} received by PID 2211 (TID 2300) on cpu 3; stack trace: ***", "killed", 1, "absl")
        for name in ("SEGV", "ABRT", "FPE", "ILL", "BUS", "TRAP")
    ),
    ("!!!!!!! Segfault encountered !!!!!!!", "killed", 1, "PyTorch"),
    (
        "Fatal error condition occurred in /aws-c-io/source/event_loop.c:72: aws_thread_launch() == 0\nExiting Application",
        "killed",
        1,
        "aws-crt",
    ),
    ("ptxas fatal   : Unresolved extern function 'x'", BROKEN, 78, "ptxas"),
    ("ptxas /tmp/a.ptx, line 9; error   : Feature 'x' requires .target sm_90", BROKEN, 78, "ptxas"),
    ("nvcc fatal   : Unsupported gpu architecture 'compute_100'", BROKEN, 78, "nvcc"),
    ("nvlink error   : Undefined reference to 'f' in 'a.o'", BROKEN, 78, "nvlink"),
    (
        "E0303 10:00:00 1 tpu.cc:1] TPU worker preempted: maintenance event TERMINATE_ON_HOST_MAINTENANCE",
        "preemption",
        75,
        "Google's TPU",
    ),
    ("Instance event: TERMINATE_ON_HOST_MAINTENANCE", "preemption", 75, "Google's metadata server"),
    # Programs that may not be run
    ("bash: ./train.sh: Permission denied", BROKEN, 78, "bash"),
    ("/bin/sh: 1: ./train.sh: Permission denied", BROKEN, 78, "dash"),
    ("./job.sh: 3: ./train.sh: Permission denied", BROKEN, 78, "dash"),
    ("/var/spool/slurmd/job7/slurm_script: line 3: ./train.sh: Permission denied", BROKEN, 78, "bash"),
    ("zsh: permission denied: ./train.sh", BROKEN, 78, "zsh"),
    ("bash: ./train: Is a directory", BROKEN, 78, "bash"),
    ("bash: ./train.sh: /bin/pyhton: bad interpreter: No such file or directory", BROKEN, 78, "bash"),
    ("nohup: failed to run command './train.sh': Permission denied", BROKEN, 78, "coreutils"),
    ("env: './train.sh': Permission denied", BROKEN, 78, "coreutils"),
    ("bash: /proc/sys/vm/drop_caches: Permission denied", None, 0, "bash"),
    ("timeout: failed to run command \u2018torchrun\u2019: No such file or directory", BROKEN, 78, "coreutils"),
    ("nohup: failed to run command 'torchrun': No such file or directory", BROKEN, 78, "coreutils"),
    ("nice: \u2018torchrun\u2019: No such file or directory", BROKEN, 78, "coreutils"),
    ("setsid: failed to execute torchrun: No such file or directory", BROKEN, 78, "util-linux"),
    ("zsh: command not found: torchrun", BROKEN, 78, "zsh"),
    ("./train.sh:12: command not found: torchrun", BROKEN, 78, "zsh"),
    ("/bin/sh: 1: torchrun: not found", BROKEN, 78, "dash"),
    ("./train.sh: 12: torchrun: not found", BROKEN, 78, "dash"),
    ("sh: torchrun: not found", BROKEN, 78, "busybox"),
    ("fish: Unknown command: torchrun", BROKEN, 78, "fish"),
    ('exec: "torchrun": executable file not found in $PATH: unknown.', BROKEN, 78, "Go"),
    (
        'Error: OCI runtime create failed: runc create failed: exec: "torchrun": executable file not found in $PATH: unknown',
        BROKEN,
        78,
        "runc",
    ),
    ("Can't locate JSON.pm in @INC (you may need to install the JSON module) at split.pl line 3.", BROKEN, 78, "perl"),
    # Command lines: the boxes of tyro and of typer
    *(
        (f"╭─ {title} ───╮\n│ {text} │\n╰───╯", BROKEN, 78, "tyro")
        for title, text in (
            ("Unrecognized options", "Unrecognized options: --training.stepss"),
            ("Invalid choice", "invalid choice 'z' for argument '--b'. Expected one of ('x', 'y')."),
            ("Required options", "Missing from /opt/train.py:"),
            ("Value error", "Error parsing --a: invalid literal for int() with base 10: 'q'"),
            ("Missing argument", "Missing value for argument '--a'. Expected 1 values."),
        )
    ),
    *(
        (f"Usage: train.py [OPTIONS]\n╭─ Error ───╮\n│ {text} │\n╰───╯", BROKEN, 78, "typer")
        for text in (
            "No such option: --lrr (Possible options: --lr)",
            "Missing argument 'x'.",
            "Missing option '--lr'.",
            "Invalid value for '--lr': Input should be a valid number",
            "Got unexpected extra argument(s) (2)",
            "Option '--lr' requires an argument.",
        )
    ),
    ("[rank0]:│ Unrecognized options: --training.stepss │", BROKEN, 78, "tyro"),
    # Java
    (f"{JAVA}OutOfMemoryError: Java heap space\n\tat A.main(A.java:3)", "host-out-of-memory", 78, "Java"),
    (f"{JAVA}IllegalStateException: x\n\tat A.main(A.java:3)", "traceback", 78, "Java"),
    # Pods
    ("Status: Failed\nReason: Preempting\nMessage: Preempted in order to admit critical pod", "preemption", 75, "kubelet"),
    ("Message: Preempted in order to admit critical pod", "preemption", 75, "kubelet"),
    ("  Reason:     TerminationByKubelet", "evicted", 75, "kubectl describe"),
    ("DeletionByTaintManager: Taint manager: deleting due to NoExecute taint", "evicted", 75, "a pod's condition"),
    ("    reason: DeletionByPodGC", "evicted", 75, "kubectl get -o yaml"),
    ('  "reason": "PreemptionByScheduler",', "preemption", 75, "kubectl get -o json"),
    ("  Reason:  EvictionByEvictionAPI", "evicted", 75, "kubectl describe"),
    ("  Warning  Preempting  12s  kubelet  Preempted in order to admit critical pod", "preemption", 75, "kubectl describe"),
    # srun
    *(
        (f"srun: error: n1: task 0: {word}", "killed", 75, "srun")
        for word in ("User defined signal 1", "User defined signal 2", "Hangup", "Terminated", "Interrupt")
    ),
    ("srun: error: n1: tasks 0-7: Illegal instruction (core dumped)", "killed", 1, "srun"),
    ("srun: error: n1: task 0: Floating point exception", "killed", 1, "srun"),
    ("srun: error: n1: task 0: Quit", "killed", 1, "srun"),
]


@pytest.mark.parametrize("row", REPORTS)
def test_how_the_end_of_a_program_is_told(row: Row, tmp_path: Path) -> None:
    check_cause(row, tmp_path, after_steps=True)


@pytest.mark.parametrize(
    "text",
    [
        'INFO looking for "command terminated with exit code 1" in the logs of the pod',
        "INFO the step ended with: Process finished with exit code 134 is what PyCharm prints",
        "INFO note that `Error: container exited with code 139` means a crash",
        "config: {'grep': \"python: a.c:3: f(): Assertion `n > 0' failed.\"}",
        "2026-03-03 10:00:00 INFO known: Fatal glibc error: malloc.c: assertion failed",
        "INFO hint: bash: ./train.sh: Permission denied is mended by chmod",
        "podFailurePolicy: {onPodConditions: [TerminationByKubelet]}",
        "INFO retries pods with DeletionByTaintManager and Preempting",
        "INFO ptxas fatal   : errors are shown by TRITON_DEBUG",
        "INFO handler for !!!!!!! Segfault encountered !!!!!!! is on",
        "INFO handlers print *** SIGSEGV received by PID and the stack",
        "INFO /bin/sh: 1: torchrun: not found is what dash says",
        'level=warning msg="exec: "git": executable file not found in $PATH"',
        "│ Missing values are filled with zeros │",
        "│ Options │ Value │",
        "│ Invalid value counts per column │",
        "INFO perl: Can't locate JSON.pm in @INC is mended by cpan",
        "/w/run.sh: fork: retry: Resource temporarily unavailable",
        "INFO Beispiel: Getötet steht am Ende",
        "if onHostMaintenance is TERMINATE_ON_HOST_MAINTENANCE the job may end",
    ],
)
def test_the_same_words_in_a_healthy_line_are_no_failure(text: str, tmp_path: Path) -> None:
    assert verdict(tmp_path / "slurm-7.out", f"{STEPS}{text}\n") == (None, 0)


def test_the_assertion_is_the_cause_of_the_exit_code_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "slurm-7.out"
    log.write_text(f"{STEPS}{ASSERTION}\n{ELASTIC}\n")
    assert tail_cause.tail_cause([str(log)]).message == ASSERTION


NODE_FAILURE = "slurmstepd: error: *** STEP 77.0 ON gpu-1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (NODE_FAILURE + "srun: error: Node failure on gpu-3\n", ["gpu-3"]),
        ("srun: error: Node failure on gpu-3\n" + NODE_FAILURE, ["gpu-3"]),
        # slurmstepd names its own node, which goes on.
        (NODE_FAILURE, []),
        (NODE_FAILURE.replace("STEP 77.0", "JOB 77"), []),
        ("srun: error: Node failure on gpu-3\nsrun: error: Node failure on gpu-4\n" + NODE_FAILURE, ["gpu-3", "gpu-4"]),
    ],
)
def test_slurmstepd_names_no_node_that_failed(text: str, nodes: list[str], tmp_path: Path) -> None:
    log = tmp_path / "slurm-77.out"
    assert verdict(log, STEPS + text) == ("node-failure", 69)
    assert tail_cause.tail_cause([str(log)]).nodes == nodes


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("Communication connection failure", 69),
        ("Connection refused", 69),
        ("No route to host", 69),
        ("Node is not responding", 69),
        ("Socket timed out on send/recv operation", 75),
        ("Invalid job id specified", 78),
    ],
)
def test_a_node_that_takes_no_task_is_excluded(why: str, code: int, tmp_path: Path) -> None:
    log = tmp_path / "slurm-77.out"
    first = f"srun: error: Task launch for StepId=123.0 failed on node gpu-7: {why}\n"
    rest = f"srun: error: Application launch failed: {why}\nsrun: Job step aborted: Waiting up to 32 seconds for x\n"
    assert verdict(log, first + rest) == ("launch", code)
    assert tail_cause.tail_cause([str(log)]).excluded() == ("--exclude=gpu-7" if code == 69 else "")
