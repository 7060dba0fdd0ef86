"""Lines of failures as programs print them, and lines that only look like them.

Messages of torch's watchdog are the format strings of ProcessGroupNCCL.cpp (pytorch/pytorch) of the versions named; others are of
the sources and issues named beside them.
"""

import pytest

from lt_monitor.logs.log_parser import LogParser

LONG = "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. "


def found(line: str) -> list[tuple[str, str]]:
    items = LogParser().parse(line.encode() + b"\n", 0).items
    return [(record["fault"], record["cause"]) for _, record in items if record["kind"] == "fault"]


@pytest.mark.parametrize(
    "line",
    [
        # 2.2 and 2.3
        "[E ProcessGroupNCCL.cpp:1182] Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        "[F ProcessGroupNCCL.cpp:1185] [Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds",
        # 2.4 and 2.5
        "[PG 0 Rank 1] First PG on this rank that detected no heartbeat of its watchdog.",
        "[PG 0 Rank 1] Received a global timeout from another rank and will start to dump the debug info.",
        "[rank1]:[E813 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] " + LONG,
        # 2.6 to 2.11
        "Received a dump signal due to a collective timeout from  rank 3 and we will try",
        "[rank4]:[E703 ProcessGroupNCCL.cpp:1682] Observed flight recorder dump signal from another rank via TCPStore.",
        "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        "Could not acquire GIL within 300 ms on exit, possible GIL induced hang",
        # 1.13, without a sequence number
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for",
        # gloo's unbound_buffer.cc and torch's monitored_barrier
        "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 18ms for recv operation",
        "RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms",
    ],
)
def test_every_spelling_of_a_hang(line: str) -> None:
    assert found(line) == [("nccl-timeout", "cascade")]


@pytest.mark.parametrize(
    "line",
    [
        "[E ProcessGroupNCCL.cpp:537] Some NCCL operations have failed or timed out.",
        "[E ProcessGroupNCCL.cpp:543] To avoid data inconsistency, we are taking the entire process down.",
    ],
)
def test_what_a_watchdog_says_behind_an_error_or_a_time_out(line: str) -> None:
    """From stanford_alpaca#207, where an InfiniBand error came first."""
    assert found(line) == [("nccl-error", "cascade")]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        # llm-foundry#258 and #1501
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", [("killed", "unknown")]),
        ("ERROR:composer.cli.launcher:Global rank 0 (PID 208865) exited with code -11", [("killed", "unknown")]),
        ("Global rank 3 (PID 208868) exited with code 1", [("exit", "cascade")]),
        ("Global rank 3 (PID 208868) exited with code 0", []),
        # sagemaker-python-sdk#134, and of subprocess
        ("ValueError: Error training x: Failed Reason: AlgorithmError: Exit Code: 139", [("killed", "unknown")]),
        ("CalledProcessError: Command 'x' returned non-zero exit status 137.", [("killed", "unknown")]),
        ("CalledProcessError: Command 'x' returned non-zero exit status 2.", [("traceback", "cascade")]),
        # vllm-ascend#486: what Ascend's own error says counts
        ("RuntimeError: InnerRunOpApi OPS function error: HcclAllreduce, error code is 6", [("traceback", "cascade")]),
        # cbio-cluster#188, t5x#1253, skypilot#1500
        ("job preempted (node failure)", [("node-failure", "root")]),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: x: Ran out of memory in memory space hbm. Used 1G", [("out-of-memory", "root")]),
        ("I 12-10 controller.py:118] Cluster is preempted (status: INIT). Recovering...", [("preemption", "root")]),
        ("I 12-10 controller.py:118] Check whether the cluster is preempted.", []),
        # TextSnake.pytorch#33: the reason is at the end of the traceback
        ("RuntimeError: Traceback (most recent call last):", []),
        # jax#23599
        ("F client.h:77] Terminating process because the JAX distributed service detected", []),
        (
            "2024-10-09 15:47:38: F client.h:77] Terminating process because the JAX distributed service detected fatal errors.",
            [("rendezvous", "unknown")],
        ),
        ("*** SIGABRT received at time=1728488858 on cpu 14 ***", [("killed", "cascade")]),
        ("*** SIGSEGV received at time=1728488858 on cpu 14 ***", [("killed", "root")]),
        # ParlAI#3084
        ("  what():  NCCL error: internal error", [("nccl-error", "unknown")]),
        # nccl-tests#166
        ("n1: Test NCCL failure common.cu:958 'internal error - please report this'", [("nccl-error", "unknown")]),
        # RLinf#925, xla#1690
        ("DistBackendError: Gloo connectFullMesh failed with [tcp/pair.cc:144] Connect timeout", [("rendezvous", "cascade")]),
        ("RuntimeError: Client mesh is unhealthy with uneven heartbeats", [("rendezvous", "cascade")]),
        # pytorch#118369
        ("  what():  [Rank 7] Watchdog caught collective operation timeout", [("nccl-timeout", "cascade")]),
        # detectron2#214, and estimators of TensorFlow
        ("FloatingPointError: Loss became infinite or NaN at iteration=540!", [("nan", "root")]),
        ("tensorflow.python.NanLossDuringTrainingError: NaN loss during training.", [("nan", "root")]),
        # lcnn#29: the trainer ends its TensorBoard
        ("TensorBoard caught SIGTERM; exiting...", []),
        ("trainer caught SIGTERM; exiting...", [("killed", "cascade")]),
    ],
)
def test_launchers_and_processes_that_crashed(line: str, fault: list[tuple[str, str]]) -> None:
    assert found(line) == fault


@pytest.mark.parametrize(
    ("line", "fault", "cause"),
    [
        # pytorch/pytorch#5040, torch/csrc/DataLoader.cpp and c10's MapAllocator
        ("RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error. ", "shared-memory", "root"),
        ("RuntimeError: unable to write to file </torch_1234_5678_0>: No space left on device (28)", "shared-memory", "root"),
        ("RuntimeError: unable to open shared memory object </torch_919_1396182366> in read-write mode", "shared-memory", "root"),
        ("Bus error (core dumped)", "shared-memory", "unknown"),
        ("OSError: [Errno 28] No space left on device: '/fsx/run1'", "disk-full", "root"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk-full", "root"),
        ("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 190007680 vs 190007572", "disk-full", "root"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array", "host-out-of-memory", "root"),
        ("MemoryError", "host-out-of-memory", "root"),
        ("[rank1]: MemoryError", "host-out-of-memory", "root"),
        ("OSError: [Errno 12] Cannot allocate memory", "host-out-of-memory", "root"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out-of-memory", "root"),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda-error", "root"),
        ("RuntimeError: CUDA error: unspecified launch failure", "cuda-error", "root"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "configuration", "root"),
        ("Error 803: system has unsupported display driver (cudaErrorInsufficientDriver)", "configuration", "root"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "gpu-lost", "root"),
        ("Unable to determine the device handle for GPU 0000:00:1B.0: GPU is lost.  Reboot the system", "gpu-lost", "root"),
        ("n1:1:2 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error", "network-device", "root"),
        # slurmctld's job_mgr.c
        ("slurmctld: Killing JobId=77 on failed node ip-10-1-2-9", "node-failure", "root"),
        ("77|NODE_FAIL|0:0", "node-failure", "root"),
        # OLMo's excepthook
        ("2024-02-06 CRITICAL [olmo.util:158, rank=0] Uncaught OLMoConfigurationError: Key 'x' not in", "configuration", "root"),
        ("train.py: error: unrecognized arguments: --local-rank=1", "configuration", "root"),
        ("torchrun: error: the following arguments are required: training_script", "configuration", "root"),
        ("ray.exceptions.RayTaskError(ValueError): ray::main_task() (pid=34676, ip=10.1.1.1)", "traceback", "cascade"),
        ("(main_task pid=34676) ValueError: not enough values", "traceback", "root"),
        ("subprocess.CalledProcessError: Command '['torchrun']' died with <Signals.SIGKILL: 9>.", "killed", "unknown"),
        ("  exitcode  : -11 (pid: 2680830)", "killed", "unknown"),
        ("  exitcode  : -15 (pid: 2680830)", "killed", "cascade"),
        ("    Exit Code:    137", "killed", "unknown"),
        ("    Reason:       OOMKilled", "host-out-of-memory", "root"),
        ("Fatal Python error: Aborted", "killed", "unknown"),
        ("Fatal Python error: Segmentation fault", "killed", "root"),
        ("=>> PBS: job killed: walltime 3613 exceeded limit 3600", "time-limit", "root"),
        ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", "nan", "root"),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store",
            "rendezvous",
            "cascade",
        ),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
            "rendezvous",
            "cascade",
        ),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443)", "network", "root"),
        ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", "traceback", "unknown"),
    ],
)
def test_what_a_line_is_about(line: str, fault: str, cause: str) -> None:
    assert found(line) == [(fault, cause)]


@pytest.mark.parametrize(
    "line",
    [
        "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. There are some potential root causes.",
        "If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to any network address of (localhost, 29500).",
        "W0219 12:09:28.313000 1401 torch/distributed/run.py:757] TCPStore Socket Timeout",
        "/usr/lib/x.py:1: UserWarning: std::bad_alloc may follow",
        "2022-08-21 | WARNING | metaseq.trainer | OOM: Ran out of memory with exception: CUDA out of memory. Tried to allocate",
        "pod exited with code 1, exit code 2",
        "INFO: task has been submitted",
        "writing /dev/shm/cache, 3 GB, shared memory is large enough",
    ],
)
def test_warnings_and_advice_are_no_evidence(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("Nov 06 17:59:27 node7 kernel: INFO: task python:1234 blocked for more than 120 seconds.", "node7"),
        (
            "ip-10-1-2-3:4711:4811 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x",
            "ip-10-1-2-3",
        ),
        ("[worker-4:12]: RuntimeError: CUDA error: unspecified launch failure", "worker-4"),
        ("srun: error: n9: task 7: Killed", "n9"),
        ("torch.OutOfMemoryError: CUDA out of memory.", None),
    ],
)
def test_the_node_of_a_line(line: str, node: str | None) -> None:
    ((_, record),) = LogParser().parse(line.encode() + b"\n", 0).items
    assert record.get("node") == node
