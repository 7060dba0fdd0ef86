"""Failures that no list of names has: other languages, other accelerators, and lines that tell of a failure in words alone."""

from pathlib import Path

import pytest
from cause_table import LATER_STEPS, STEPS
from failure_tally import verdict

from lt_monitor.runs.faults.tail_cause import tail_cause

# The end of a log, its fault, its exit code, and a part of the message.
ENDINGS: list[tuple[str, str, int, str]] = [
    ("[09:18][7] Stopping training due to lack of heartbeats from the sampler\n", "unknown", 1, "lack of heartbeats"),
    (
        "ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]\nStacktrace:\n [1] getindex\n",
        "traceback",
        78,
        "BoundsError",
    ),
    (
        "ERROR: ArgumentError: Package Flux not found in current path.\nStacktrace:\n [1] macro expansion\n",
        "traceback",
        78,
        "Flux",
    ),
    ("ERROR: InterruptException:\nStacktrace:\n [1] wait\n", "killed", 75, "InterruptException"),
    ("[4242] signal (11.1): Segmentation fault\nin expression starting at /root/a.jl:9\n", "killed", 1, "signal (11.1)"),
    (
        "^\n\nError: no data\n    at [eval]:1:7\n    at runScript (node:vm:209:10)\n\nNode.js v20.19.2\n",
        "traceback",
        78,
        "Error: no data",
    ),
    (
        "thread 'main' (7) panicked at r.rs:1:138:\ncalled `Result::unwrap()` on an `Err` value: \"no data\"\nnote: run with x\n",
        "traceback",
        78,
        '`Err` value: "no data"',
    ),
    (
        'Timeout (0:10:00)!\nThread 0x00007fa (most recent call first):\n  File "/opt/a.py", line 12 in step\n',
        "unknown",
        1,
        "Timeout",
    ),
    (
        "F0000 00:00:1772532000.123456    4242 pjrt_client.cc:12] Non-OK-status: status\n*** Check failure stack trace: ***\n",
        "killed",
        1,
        "Non-OK-status",
    ),
    ("FATAL Flags parsing error: Unknown command line flag 'a_lr'. Did you mean: lr ?\n", "configuration", 78, "a_lr"),
    (
        'Traceback (most recent call last):\n  File "/opt/a.py", line 7, in <module>\n    for batch in loader: pass\n'
        "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/opt/a.py", line 4, in __getitem__\n    raise KeyError("text")\nKeyError: \'text\'\n',
        "traceback",
        78,
        "KeyError: 'text'",
    ),
    ("make: *** No rule to make target 'x'.  Stop.\n", "unknown", 1, "No rule"),
    ("cd: /scratch/run1: No such file or directory\n", "unknown", 1, "/scratch/run1"),
    ("cp: cannot stat '/scratch/x.bin': No such file or directory\n", "unknown", 1, "x.bin"),
    ("cp: Aufruf von stat f\u00fcr 'x.bin' nicht m\u00f6glich: Datei oder Verzeichnis nicht gefunden\n", "unknown", 1, "x.bin"),
    ("mkdir: cannot create directory '/scratch/x': Permission denied\n", "unknown", 1, "mkdir"),
    ("./run.sh: line 8: [: : integer expression expected\n", "unknown", 1, "integer"),
    ("rsync error: error in file IO (code 11) at receiver.c(380) [receiver=3.1.3]\n", "unknown", 1, "code 11"),
    ("upload failed: ./ckpt to s3://b/ckpt Unable to locate credentials\n", "unknown", 1, "credentials"),
    ("ERROR: job failed, exit status: 3\n", "exit", 1, "status: 3"),
    (
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: "
        "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\nzsh: abort      mlx_lm.lora --train\n",
        "out-of-memory",
        78,
        "Insufficient Memory",
    ),
    ("loading\n[ERROR] Cannot find checkpoint /ckpt/iter_3, giving up\n", "unknown", 1, "Cannot find checkpoint"),
    ("2026-03-03 10:00:00 ERROR train: something odd in stage 3\n", "unknown", 1, "something odd"),
    ("the job has failed\nbye\n", "unknown", 1, "the job has failed"),
    # Gaudi
    (
        "RuntimeError: synStatus=26 [Generic failure] Device acquire failed.\n",
        "gpu-lost",
        69,
        "Device acquire failed",
    ),
    ("RuntimeError: synStatus=20 [Device already acquired] Device acquire failed.\n", "rendezvous", 75, "already acquired"),
    ("[   72.9] habanalabs hl2: Failed to communicate with Device CPU (CPU-CP timeout)\n", "gpu-lost", 69, "hl2"),
    ("[19:08:34.164951][SYN_API       ][error][tid:44F8A] compileGraph: Failed to add recipe\n", "cuda-error", 1, "compileGraph"),
    (
        "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB\n",
        "out-of-memory",
        78,
        "PT_DEVMEM",
    ),
    # Intel's GPUs
    ("RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n", "gpu-lost", 69, "DEVICE_LOST"),
    (
        "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)\n",
        "out-of-memory",
        78,
        "OUT_OF_DEVICE_MEMORY",
    ),
    ("xe 0000:2b:00.0: [drm] Tile0: GT0: Timedout job: seqno=14, guc_id=0 in no process [-1]\n", "gpu-lost", 69, "Timedout job"),
    ("i915 0000:4d:00.0: [drm] GPU HANG: ecode 12:8:00000000\n", "gpu-lost", 69, "GPU HANG"),
    ("Abort was called at 287 line in file:\n./shared/source/os_interface/linux/drm_neo.cpp\n", "killed", 1, "drm_neo.cpp"),
    ("RuntimeError: HIP error: ECC uncorrectable error\n", "ecc", 69, "HIP error"),
    ("RuntimeError: ACL stream synchronize failed, error code:507054\n", "gpu-lost", 69, "507054"),
    ("XlaRuntimeError: UNAVAILABLE: TPU slice failed health check\n", "gpu-lost", 69, "health check"),
    (
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 116, kind: X, message: "Stale" })\n',
        "filesystem",
        75,
        "code: 116",
    ),
    ("safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: X })\n", "disk-full", 78, "28"),
    ("Signal 15 (SIGTERM) caught by train.py, exiting after step 100\n", "killed", 75, "SIGTERM"),
    ("mlx5_core 0000:5e:00.0: health_care: handling bad device here\n", "network-device", 69, "bad device"),
    # Neuron's runtime in exceptions, and its own lines
    (
        'tensorflow.InternalError: adaptor.cc:446:Execute failed: nrt_execute: status=1004, error message="other errors".\n',
        "neuron-error",
        1,
        "status=1004",
    ),
    (
        "2021-Nov-01 06:02:18.0992 1:2 ERROR  NMGR:dlr_infer                 Inference ended, 1004\n",
        "neuron-error",
        1,
        "dlr_infer",
    ),
    (
        "2022-Mar-29 07:07:29.0082    11:11    ERROR   NRT:nrt_init      Unable to determine Neuron Driver version.\n",
        "configuration",
        78,
        "nrt_init",
    ),
    # UCX and Open MPI
    (
        "[n7:23308:0:23308] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n",
        "nccl-error",
        75,
        "retry count",
    ),
    (
        "[n7:6807 :0:6807] ib_mlx5_log.c:115  FATAL: Error on mlx5_3:1 QP 0xe6 wqe[7]: Remote access (synd 0x13) SEND\n",
        "nccl-error",
        75,
        "Remote access",
    ),
    (
        "[170.2] [n7:1234 :0]  sock.c:471  UCX  ERROR recv(fd=22) failed: Connection reset by remote peer\n",
        "nccl-error",
        75,
        "remote peer",
    ),
    # Ray
    (
        "The node with node id: 8f20 and ip: 10.0.0.3 has been marked dead because the detector has missed too many heartbeats\n",
        "node-failure",
        69,
        "marked dead",
    ),
    ("The actor is dead because its node has died. Node Id: 677d\n", "node-failure", 69, "its node has died"),
    (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Exit code: 1. The process receives a SIGTERM.\n",
        "killed",
        75,
        "SIGTERM",
    ),
    # Moab and Torque, Slurm, Hydra
    ("Job deleted at request of root@head\nMOAB_INFO:  job exceeded wallclock limit\n", "time-limit", 75, "wallclock"),
    ("Job deleted at request of ann@head\n", "cancelled", 78, "at request of"),
    ("srun: error: task 0 launch failed: Plugin initialization failed\n", "launch", 69, "Plugin"),
    ("srun: error: tasks 0-3 launch failed: Invalid node name specified\n", "launch", 78, "Invalid"),
    (
        "Error locating target 'data.build', set env var HYDRA_FULL_ERROR=1 to see chained exception.\n",
        "configuration",
        78,
        "build",
    ),
    ("RuntimeError:  [!] NaN loss with decoder_loss.\n", "nan", 78, "decoder_loss"),
]

NODES = [
    ("[node1:3] CUDA error: uncorrectable ECC error encountered\n", ["node1"]),
    ("[1,0]<stderr>:[gpu-a.cluster.local:3412] CUDA error: uncorrectable ECC error encountered\n", ["gpu-a.cluster.local"]),
    ("[default0]:[node3:1] RuntimeError: CUDA error: uncorrectable ECC error encountered\n", ["node3"]),
    # Of loggers: a module and its line, and other fields.
    ("[2023-09-17 13:15:13,336] [ERROR] [axolotl.train:264] [PID:1110] [RANK:0] uncorrectable ECC error encountered\n", []),
    ("[axolotl.train:264] [PID:1110] [RANK:0] uncorrectable ECC error encountered\n", []),
    ("[trainer.loop:88] ERROR uncorrectable ECC error encountered\n", []),
    ("[train.py:88] uncorrectable ECC error encountered\n", []),
    ("[PID:11100] RuntimeError: CUDA error: uncorrectable ECC error encountered\n", []),
    ("[local_rank:3] uncorrectable ECC error encountered\n", []),
    (
        "E39999: 2024-10-20-22:34:40.965.193  device error, errcode:21008.[FUNC:Process][FILE:device.cc][LINE:1232][THREAD:12]\n",
        [],
    ),
    # Ray's label names the reporter.
    (
        "(Executor pid=5, ip=10.0.0.2) The node with node id: 8f and ip: 10.0.0.3 has been marked dead because of heartbeats\n"
        "(Executor pid=5, ip=10.0.0.2) The actor is dead because its node has died.\n",
        ["10.0.0.3"],
    ),
]


@pytest.mark.parametrize(("text", "fault", "code", "message"), ENDINGS, ids=lambda part: str(part)[:40])
def test_the_cause(text: str, fault: str, code: int, message: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for before in ("", STEPS):
        assert verdict(log, before + text) == (fault, code)
        assert message in tail_cause([str(log)]).message
    if fault not in ("killed", "gpu-lost"):
        assert verdict(log, STEPS + text + LATER_STEPS) == (None, 0)


@pytest.mark.parametrize(
    "line",
    [
        "wandb: ERROR Error while calling W&B API: internal error",
        "2026-03-03 10:00:00 WARNING train: the job failed to open the cache, retrying",
        "2026-03-03 10:00:00 INFO train: aborting the old prefetch",
        "E0000 00:00:1 4242 cuda_dnn.cc:8310] Unable to register cuDNN factory: already registered",
        "[ERROR] metrics are not sent: falling back to files",
        "test error: 0.31",
        "0 errors, 3 warnings",
        "error rate 0.02",
        "rm: remove regular file 'a.bin'? ",
        "tar: Removing leading `/' from member names",
        "bash: /proc/sys/vm/drop_caches: Permission denied",
        "UserWarning: cannot read the cache: No such file or directory",
        "[2026-03-03 10:00:00,123] [DEBUG] [io.py:12] stat: a.json: No such file or directory",
        "I0303 10:00:00.123456 12 cache.cc:12] open: /a: No such file or directory",
        "train.py: line 12: batch 3 of 10",
        "git: using revision abc1234",
        "cp: 2",
        "rm: 'mean' 0.5",
        "Stopping training because the validation loss does not improve any more",
        "Stopping training due to early stopping at step 400",
    ],
)
def test_a_line_of_a_program_that_goes_on(line: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for text in (f"loading\n{line}\nbuilding the model\n", f"{STEPS}{line}\n"):
        assert verdict(log, text) == (None, 0)


def test_steps_whose_losses_are_shown_by_part(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    line = "2026-04-18 21:58:31,047 - mmdet - INFO - Iter [{}/900]\tlr: 3.990e-04, a.loss_cls: 0.0, b_loss_iou: nan, loss: {}\n"
    assert verdict(log, "".join(line.format(step, "nan") for step in (100, 150, 200))) == ("nan", 78)
    assert verdict(log, "".join(line.format(step, "0.7") for step in (100, 150, 200))) == (None, 0)


def test_a_logged_traceback_of_a_job_that_is_complete(tmp_path: Path) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/opt/a.py", line 4, in f\n    1 / 0\nZeroDivisionError: division by zero\n'
    )
    log = tmp_path / "a.log"
    assert verdict(log, f"ERROR:root:metric failed\n{raised}Training finished\n") == (None, 0)
    # Buffered output comes after the traceback that ended the program.
    assert verdict(log, f"saving\n{raised}Training finished\n") == ("traceback", 78)


@pytest.mark.parametrize(("text", "nodes"), NODES, ids=lambda part: str(part)[:40])
def test_the_node_is_named_only_by_labels_of_launchers(text: str, nodes: list[str], tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(text)
    assert tail_cause([str(log)]).nodes == nodes


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n", [2]),
        ("Container rank 3 status failed cmd ['python', 'train.py'] code -6 log log/default.0.log\n", [3]),
        ("ABORT!!! Out of all 4 trainers, the trainer process with rank=[3] was aborted. Please check its log.\n", [3]),
        ("ABORT!!! Out of all 4 trainers, the trainer process with rank=[0, 2] was aborted. Please check its log.\n", []),
    ],
)
def test_launchers_name_the_rank(text: str, ranks: list[int], tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(text)
    assert tail_cause([str(log)]).ranks == ranks


@pytest.mark.parametrize(("losses", "fault"), [("1.8 2.7 nan nan", "nan"), ("1.8 nan", None), ("1.8 nan 2.1 nan", None)])
def test_two_losses_without_a_number_at_the_end(losses: str, fault: str | None, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "".join(
            f"step {step:05} (0.13%) | loss: {loss} | lrm: 0.01 | dt: 82.70ms | tok/sec: 12,525 | mfu: 0.00 | total time: 0.00m\n"
            for step, loss in enumerate(losses.split(), start=1)
        )
    )
    assert verdict(log, log.read_text())[0] == fault
