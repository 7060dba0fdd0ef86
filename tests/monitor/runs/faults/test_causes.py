"""What ended a job, and whether it may start again, of logs reduced to the lines that tell.

Free text and names are our own. Formats of lines are those of the program's source or of the public log named in the last column.
"""

from pathlib import Path

import pytest
from cause_table import STEPS, Row, check_cause
from failure_tally import verdict

from lt_monitor.runs.faults.tail_cause import tail_cause

TRACE = 'Traceback (most recent call last):\n  File "/opt/train.py", line 9, in save\n    torch.save(state, path)\n'
NVRM = "[31234.100000] NVRM: Xid (PCI:0000:04:00): "
NVLINK = "i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)\n"
WATCHDOG = (
    "[rank{0}]:[E327 23:04:00.815080959 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600025 milliseconds before timing out.\n"
)
UNEXPECTED = "RuntimeError: Unexpected error from cudaGetDeviceCount(). "
COMPLETION = "NCCL WARN NET/IB : Got completion from peer 10.3.0.61<39430> with "

XIDS = [
    *((number, "", 69) for number in (46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158)),
    *((number, "", 69) for number in (167, 168, 169, 171, 172)),
    *((number, ", NETIR_LINK_EVT Fatal XC0 " + NVLINK, 69) for number in range(144, 151)),
    *((number, ", RLW_RXPIPE Nonfatal XC0 " + NVLINK, 0) for number in range(144, 151)),
    *((number, "", 1) for number in (8, 11, 13, 25, 31, 32, 39, 43, 45, 69, 80, 126)),
    (94, ", pid=1122, name=python, Contained: SM (0x1). RST: No, D-RST: No", 75),
    *((number, "", 0) for number in (14, 37, 44, 63, 66, 92, 93, 106, 121, 137, 154, 157, 160, 162, 163)),
    (154, ", GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 69),
    (154, ", GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", 69),
    (154, ", GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", 0),
]


@pytest.mark.parametrize(("number", "text", "code"), XIDS)
def test_xids_follow_the_catalogue(number: int, text: str, code: int, tmp_path: Path) -> None:
    """The catalogue is docs.nvidia.com/deploy/xid-errors: a reset or reboot excludes the node, a restarted program does not."""
    assert verdict(tmp_path / "slurm-7.out", f"{NVRM}{number}{text or ', pid=1122'}\n") == ("xid" if code else None, code)


CAUSES: list[Row] = [
    # Filesystems: errno(3) and strerror of Linux
    (TRACE + "OSError: [Errno 116] Stale file handle\n", "filesystem", 75, "huggingface/transformers#9732"),
    (
        "[rank3]: OSError: [Errno 116] Stale file handle: '/home/a/.triton/cache/x'\n",
        "filesystem",
        75,
        "databricks/megablocks#106",
    ),
    (TRACE + "OSError: [Errno 5] Input/output error: '/lustre/ckpt/a.pt'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/bucket/ckpt'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/fsx/a'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "TimeoutError: [Errno 110] Connection timed out: '/fsx/ckpt/a.pt'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "TimeoutError: [Errno 110] Connection timed out\n", "network", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 107] Transport endpoint is not connected\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 112] Host is down: '/mnt/cifs/a'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 121] Remote I/O error: '/beegfs/a'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 37] No locks available\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 117] Structure needs cleaning: '/scratch/a'\n", "filesystem", 75, "errno(3)"),
    (TRACE + "OSError: [Errno 521] Unknown error 521: '/nfs/a'\n", "filesystem", 75, "include/linux/errno.h"),
    (TRACE + "OSError: [Errno 30] Read-only file system: '/data/out'\n", "configuration", 78, "errno(3)"),
    (TRACE + "OSError: [Errno 28] No space left on device: '/data/out'\n", "disk-full", 78, "errno(3)"),
    (TRACE + "OSError: [Errno 122] Disk quota exceeded: '/data/out'\n", "disk-full", 78, "errno(3)"),
    (TRACE + "FileNotFoundError: [Errno 2] No such file or directory: '/data/in'\n", "traceback", 78, "errno(3)"),
    (TRACE + "PermissionError: [Errno 13] Permission denied: '/data/in'\n", "traceback", 78, "errno(3)"),
    (TRACE + "OSError: [Errno 5] Input/output error: '/dev/infiniband/uverbs0'\n", "traceback", 78, "errno(3)"),
    ("cp: error writing '/fsx/run/a.pt': Input/output error\n", "filesystem", 75, "coreutils"),
    ("/bin/bash: /fsx/run/job.sh: Stale file handle\n", "filesystem", 75, "bash"),
    ("Error: failed to write shard: Input/output error (os error 5)\n", "filesystem", 75, "Rust's std::io::Error"),
    (
        "LustreError: 11-0: fs-OST0001-osc: This client was evicted by fs-OST0001; in progress operations\n",
        "filesystem",
        75,
        "Lustre",
    ),
    ("[12.3] nfs: server fs1 not responding, timed out\n", "filesystem", 75, "net/sunrpc/clnt.c"),
    ("[12.3] nfs: server fs1 not responding, still trying\n", None, 0, "net/sunrpc/clnt.c"),
    ("[12.3] EXT4-fs error (device nvme0n1p1): ext4_find_entry: inode #2: reading lblock 0\n", "filesystem", 69, "fs/ext4"),
    ("[12.3] blk_update_request: I/O error, dev nvme1n1, sector 123\n", "filesystem", 69, "block/blk-core.c"),
    # Signals and notices
    (
        "W0409 07:28:49 1359 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1359 got signal: 15\n",
        "killed",
        75,
        "pytorch/pytorch#150916",
    ),
    (STEPS + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 1\n", "killed", 75, "torch"),
    (
        STEPS + "torch.distributed.elastic.multiprocessing.errors.SignalException: Process 1 got signal: 2\n",
        "killed",
        75,
        "torch",
    ),
    ("Received Signals.SIGTERM death signal, shutting down workers\n", "killed", 75, "torch 1.13"),
    (STEPS + "[rank: 0] Received SIGTERM: 15\n", "killed", 75, "Lightning-AI/pytorch-lightning"),
    (STEPS + "job.sh: line 12: 12345 Terminated              python train.py\n", "killed", 75, "bash"),
    (STEPS + "KeyboardInterrupt\n", "killed", 75, "Python"),
    (
        "Dec 17 16:03:58Z w1 start 2024/12/17 GCP Metadata Service says termination is imminent\n",
        "preemption",
        75,
        "mozilla/translations#964",
    ),
    ("GCP says termination is imminent\n" + STEPS, "preemption", 75, "mozilla/translations#964, with steps after it"),
    (
        '{"level":"warn","message":"Spot interruption payload received: {\\"action\\":\\"terminate\\"}"}\n',
        "preemption",
        75,
        "runs-on/runs-on#277",
    ),
    ("Instance is going to be interrupted in 2 minutes.\n", "preemption", 75, "runs-on/runs-on#277"),
    ("Received spot termination notice, saving\n", "preemption", 75, "AWS's spot instances"),
    ('{"Events":[{"EventType":"Preempt","ResourceType":"VirtualMachine"}]}\n', "preemption", 75, "Azure's scheduled events"),
    ("Pod was terminated in response to imminent node shutdown.\n", "preemption", 75, "kubelet"),
    ("    Reason:       Evicted\n", "evicted", 75, "kubectl describe"),
    ("    Reason:       OOMKilled\n", "host-out-of-memory", 78, "kubectl describe"),
    (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n",
        "preemption",
        75,
        "slurmstepd",
    ),
    (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
        "time-limit",
        75,
        "slurmstepd",
    ),
    (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE LOG ***\n",
        "node-failure",
        69,
        "slurmstepd",
    ),
    ("INFO: if a spot interruption notice received, the state is saved\n", None, 0, "ours"),
    # Slurm's launch
    ("srun: error: Task launch for 36.0 failed on node cn131: Job credential expired\n", "launch", 69, "ai4d-iasc/trixie#58"),
    (
        "srun: error: Task launch for StepId=34.0 failed on node n4: Socket timed out on send/recv operation\n",
        "launch",
        75,
        "mlr-org/batchtools#201",
    ),
    (
        "srun: error: Task launch for 56.0 failed on node n72: Invalid job credential\n",
        "launch",
        69,
        "omnivector-solutions/snap-slurm#80",
    ),
    (
        "slurmstepd: error: execve(): /tmp/slurmd/job2997814/slurm_script: No such file or directory\n",
        "launch",
        75,
        "ArjunaCluster/ArjunaUsers#21",
    ),
    ("slurmstepd: error: execve(): pyhton: No such file or directory\n", "launch", 78, "slurmstepd"),
    (
        "srun: error: Unable to create step for job 10: Error generating job credential\n",
        "launch",
        75,
        "omnivector-solutions/snap-slurm#96",
    ),
    ("srun: error: Unable to create step for job 10: Memory required by task is not available\n", "launch", 78, "slurm_errno.c"),
    ("srun: Job 10 step creation temporarily disabled, retrying (Requested nodes are busy)\n", None, 0, "srun"),
    (
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
        "launch",
        78,
        "slurm_errno.c",
    ),
    ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", "launch", 75, "slurm_errno.c"),
    (
        "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)\n",
        "launch",
        75,
        "slurm_errno.c",
    ),
    ("slurmd: error: prolog failed: rc:230 output:\n", "launch", 69, "slurmd"),
    ("slurmstepd: error: Munge decode failed: Expired credential\n", "launch", 69, "auth_munge.c"),
    # A port in use, after which srun clears the job away
    (
        "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed "
        "to bind to "
        "[::]:29500 (errno: 98 - Address already in use).\nsrun: error: n44: task 3: Exited with exit code 1\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "slurmstepd: error: *** JOB 5 ON n43 CANCELLED AT 2024-10-09T23:25:32 ***\n",
        "rendezvous",
        75,
        "a public note",
    ),
    ("slurmstepd: error: *** JOB 5 ON n43 CANCELLED AT 2024-10-09T23:25:32 ***\n", "cancelled", 78, "scancel"),
    (
        "slurmstepd: error: *** JOB 5 ON n43 CANCELLED AT 2024-10-09T23:25:32 ***\nsrun: error: n4: task 3: Terminated\n",
        "cancelled",
        78,
        "scancel",
    ),
    # Time-outs, different collectives, network cards
    (WATCHDOG.format(0, 7, "ALLREDUCE") + WATCHDOG.format(1, 7, "ALLREDUCE"), "nccl-timeout", 1, "torch"),
    (
        WATCHDOG.format(0, 7, "ALLREDUCE") + WATCHDOG.format(1, 7, "_ALLGATHER_BASE"),
        "collective-mismatch",
        78,
        "Respaired/Tsukasa-Speech#6",
    ),
    (WATCHDOG.format(0, 7, "ALLREDUCE") + WATCHDOG.format(1, 8, "_ALLGATHER_BASE"), "nccl-timeout", 1, "torch"),
    (WATCHDOG.format(0, 7, "SEND") + WATCHDOG.format(1, 7, "RECV"), "nccl-timeout", 1, "torch"),
    (
        WATCHDOG.format(0, 7, "ALLREDUCE").replace("[Rank 0]", "[PG ID 1 PG GUID 1 Rank 0]")
        + WATCHDOG.format(1, 7, "BROADCAST").replace("[Rank 1]", "[PG ID 2 PG GUID 2 Rank 1]"),
        "nccl-timeout",
        1,
        "torch 2.6, two process groups",
    ),
    (
        f"n7:4654:5666 [0] transport/net_ib.cc:1295 {COMPLETION}error 12, opcode 129, len 0, vendor err 129 (Recv)\n"
        + WATCHDOG.format(5, 7, "ALLREDUCE"),
        "nccl-error",
        75,
        "NVIDIA/nccl#1434",
    ),
    (
        f"n7:4654:5666 [0] {COMPLETION}status=12 opcode=0 len=0 vendor err 129 (Send) localGid x\n",
        "nccl-error",
        75,
        "NVIDIA/nccl, net_ib",
    ),
    (
        f"n7:4654:5666 [0] {COMPLETION}status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)\n",
        "nccl-error",
        75,
        "NVIDIA/nccl, net_ib",
    ),
    (
        "n7:46:56 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n" + WATCHDOG.format(5, 7, "ALLREDUCE"),
        "network-device",
        69,
        "NVIDIA/nccl, net_ib",
    ),
    (
        "[12.3] mlx5_core 0000:5e:00.0 ib0: Link down\n" + WATCHDOG.format(5, 7, "ALLREDUCE"),
        "network-device",
        69,
        "drivers/net/mlx5",
    ),
    # CUDA's numbers
    ("cuInit returned error 999 CUDA_ERROR_UNKNOWN\n", "gpu-lost", 69, "MFlowCode/MFC#1835"),
    ("failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error\n", "gpu-lost", 69, "tensorflow"),
    ("cuInit(0) returned 802\n", "gpu-lost", 69, "cuda.h"),
    ("cuInit failed with error code 100\n", "gpu-lost", 69, "cuda.h"),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n",
        "gpu-lost",
        69,
        "c10/cuda",
    ),
    ("UserWarning: CUDA initialization: Error 802: system not yet initialized\n", None, 0, "c10/cuda"),
    ("RuntimeError: No CUDA GPUs are available\n", "gpu-lost", 69, "torch.cuda"),
    ("RuntimeError: CUDA error: unknown error\n", "gpu-lost", 69, "cuda.h, 999"),
    ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment\n", "gpu-lost", 69, "c10/cuda"),
    ("CUDA error at main.cu:12 code=46(cudaErrorDevicesUnavailable)\n", "gpu-lost", 69, "cuda-samples"),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n", "gpu-lost", 69, "cuda.h, 46"),
    (UNEXPECTED + "Error 803: system has unsupported display driver / cuda driver combination\n", "configuration", 78, "cuda.h"),
    (UNEXPECTED + "Error 804: forward compatibility was attempted on non supported HW\n", "configuration", 78, "cuda.h"),
    (UNEXPECTED + "Error 101: invalid device ordinal\n", "configuration", 78, "cuda.h"),
    ("CUDA driver error: 719\n", "cuda-error", 78, "cuda.h"),
    ("RuntimeError: CUDA error: unspecified launch failure\n", "cuda-error", 78, "cuda.h, 719"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered\n", "cuda-error", 78, "cuda.h, 700"),
    (
        "CUDA runtime error: an illegal instruction was encountered (73) in f at magmablas/strsm.cu:484\n",
        "cuda-error",
        78,
        "jaywalnut310/glow-tts#7",
    ),
    ("n1:1:2 [0] NCCL WARN Cuda failure 802 'system not yet initialized'\n", "gpu-lost", 69, "NVIDIA/nccl"),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "gpu-lost", 69, "nvidia-smi"),
    ("Failed to initialize NVML: Unknown Error\n", "gpu-lost", 69, "NVIDIA/nvidia-container-toolkit"),
    # NVSwitch
    (
        "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id "
        "00000000:86:00.0 port 3\n",
        "sxid",
        69,
        "leptonai/gpud, fabric-manager",
    ),
    (
        "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus "
        "id 00000000:86:00.0 port 3\n",
        None,
        0,
        "leptonai/gpud, fabric-manager",
    ),
    (
        "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager\n",
        "sxid",
        69,
        "leptonai/gpud",
    ),
    (
        "[12.3] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 31 LTSSM Fault Up\n",
        "sxid",
        69,
        "NVIDIA's fabric manager guide",
    ),
    # AMD
    (
        " 33%|###Memory access fault by GPU node-3 (Agent handle: 0x5a) on address 0x70. Reason: Unknown.\n",
        "cuda-error",
        1,
        "ROCm/legacy-rocm-build#4021",
    ),
    ("HW Exception by GPU node-4 (Agent handle: 0x1e) reason :GPU Hang\n", "gpu-lost", 69, "ROCm/legacy-rocm-build#5259"),
    (
        "[19.9] amdgpu 0000:3d:00.0: amdgpu: [mmhub0] no-retry page fault (src_id:0 ring:160 vmid:3 pasid:3)\n",
        "cuda-error",
        1,
        "ROCm/legacy-rocm-build#4021",
    ),
    (
        "[19.9] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3\n",
        "gpu-lost",
        69,
        "drivers/gpu/drm/amd",
    ),
    (
        "[19.9] amdgpu 0000:3d:00.0: amdgpu: socket: 0, die: 0 2 uncorrectable hardware errors detected in umc block\n",
        "ecc",
        69,
        "drivers/gpu/drm/amd",
    ),
    (
        ":0:rocdevice.cpp :2982: HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception\n",
        "cuda-error",
        78,
        "ROCm/clr",
    ),
    ("RuntimeError: No HIP GPUs are available\n", "gpu-lost", 69, "torch.cuda"),
    ("RuntimeError: HIP error: invalid device function\n", "cuda-error", 78, "c10/hip"),
    # Ascend
    (
        "EE1002: 2024-09-03-16:50:00.041.231 Stream synchronize timeout. rtDeviceSynchronize execute failed\n",
        "nccl-timeout",
        1,
        "Ascend/pytorch#48",
    ),
    (
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "EJ0001: 2024-05-21-11:57:54.167.645 Failed to initialize the HCCP process.\n",
        "rendezvous",
        75,
        "hiyouga/LlamaFactory#3839",
    ),
    (
        "[rank0]: RuntimeError: createHCCLComm:x.ts:1479 HCCL function error: HcclGetRootInfo(&hcclID), error code is 11\n"
        "[rank0]: EJ0003: [PID: 159] 2025-03-26-17:01:02.816.428 Failed to bind the IP port.\n",
        "rendezvous",
        75,
        "vllm-project/vllm-ascend#405",
    ),
    (
        "[rank1]: EI0006: [PID: 1] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: x\n",
        "rendezvous",
        75,
        "vllm-project/vllm-ascend#486",
    ),
    (
        TRACE + "RuntimeError: HCCL function error: HcclGetRootInfo(&hcclID), error code is 4\n"
        "EI0006: [PID: 8] 2026-03-03-10:00:00.0 Getting socket times out. Reason: x\n",
        "rendezvous",
        75,
        "the line of the code explains the call",
    ),
    (
        TRACE + "RuntimeError: The Inner error is reported as above. The process exits for this inner error.\n"
        "EZ9999: Inner Error!\n",
        "npu-error",
        1,
        "torch_npu",
    ),
    ("Communication_Error_Get_Socket(EI0006): Getting socket times out.\n", "rendezvous", 75, "vllm-project/afd-plugin#229"),
    (
        "EI0002: [PID: 1] 2025-04-08-18:07:20.444.436 The wait execution of the Notify register times out.\n",
        "nccl-timeout",
        1,
        "CANN",
    ),
    (
        "RuntimeError: EJ0002: [PID: 38079] 2025-07-15-12:45:31.202.787 The network port is down.\n",
        "network-device",
        69,
        "vllm-project/vllm-ascend#1815",
    ),
    ("Execution Error ROCE CQE(EI0013): An error CQE occurred.\n", "nccl-error", 1, "hiascend.com, hcclug_000061"),
    ("EZ9999: Inner Error!\nEZ9999: [PID: 1] The error from device(2), serial number is 3\n", "npu-error", 1, "CANN"),
    ("RuntimeError: ACL stream synchronize failed, error code:507018\n", "npu-error", 1, "Ascend/pytorch"),
    ("EI0004: [PID: 1] The ranktable is invalid.\n", "configuration", 78, "CANN"),
    # Neuron
    ("2026-Jan-01 00:00:00 1:2 ERROR NRT:nrt_infodump NRT_EXEC_HW_ERR_NC_UE\n", "neuron-error", 69, "AWS Neuron runtime"),
    ("nrt_execute failed: NRT_EXEC_UNIT_UNRECOVERABLE (101)\n", "neuron-error", 69, "AWS Neuron runtime"),
    ("nrt_execute status=1004 NRT_EXEC_COMPLETED_WITH_ERR\n", "neuron-error", 1, "AWS Neuron runtime"),
    ("nrt_load: NRT_UNSUPPORTED_NEFF_VERSION (10)\n", "configuration", 78, "AWS Neuron runtime"),
    # JAX
    (
        "2022-11-15 16:03:15.140058: E tensorflow/core/coordination_service.cc:954] /job:jax_worker/replica:0/task:37 "
        "has been set to "
        "ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.\n",
        "rendezvous",
        75,
        "EleutherAI/architecture-objective#26",
    ),
    (
        "F0101 00:00:00.000000 1 client.h:77] Terminating process because the JAX distributed service detected fatal "
        "errors. UNAVAILABLE: "
        "The following tasks are unhealthy (stopped sending heartbeats): coordination service\n",
        "rendezvous",
        75,
        "jaxlib",
    ),
    (
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect\n",
        "rendezvous",
        75,
        "jaxlib",
    ),
    (
        "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/accel0): x\n",
        "rendezvous",
        75,
        "jax",
    ),
    ("[I socket.cpp:1] heartbeat timeout is 600 s\nconnecting to the coordination service\n", None, 0, "ours"),
    # The kernel
    (
        "[12.3] pt_main_thread[25]: segfault at 7f7 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3]\n",
        "killed",
        1,
        "leptonai/gpud, nccl",
    ),
    (
        "[12.3] traps: python3[25] trap invalid opcode ip:7f7 sp:7f7 error:0 in libx.so[7f7+d3]\n",
        "killed",
        1,
        "arch/x86/kernel/traps.c",
    ),
    (
        "[12.3] traps: python3[25] general protection fault ip:7f7 sp:7f7 error:0 in libx.so[7f7+d3]\n",
        "killed",
        1,
        "arch/x86/kernel/traps.c",
    ),
    ("[12.3] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:25]\n", "hung-task", 75, "kernel/watchdog.c"),
    ("[12.3] Kernel panic - not syncing: Fatal machine check\n", "node-failure", 69, "kernel/panic.c"),
    ("[12.3] EDAC MC0: 1 UE memory read error on CPU_SrcID#0\n", "node-failure", 69, "drivers/edac"),
    ("[12.3] EDAC MC0: 1 CE memory read error on CPU_SrcID#0\n", None, 0, "drivers/edac"),
    ("[12.3] mce: [Hardware Error]: Machine check events logged\n", None, 0, "arch/x86/kernel/cpu/mce"),
    # More spellings of the same
    (STEPS + "INFO: Preemption notice handler started\n", None, 0, "ours"),
    (STEPS + "WARNING: retrying read after [Errno 5] Input/output error: '/lustre/x'\n", None, 0, "ours"),
    (STEPS + "INFO received SIGUSR1, dumping stacks\n" + STEPS, None, 0, "ours"),
    (STEPS + "I0101 coordination_service_agent.cc:300] Coordination agent has successfully connected.\n", None, 0, "jaxlib"),
    (STEPS + "[12.3] mlx5_core 0000:5e:00.0 ib0: Link up\n", None, 0, "drivers/net/mlx5"),
    (STEPS + "Training completed\nReceived 15 death signal, shutting down workers\n", None, 0, "torch"),
    (STEPS + "[19.9] amdgpu 0000:3d:00.0: amdgpu: GPU reset(2) succeeded!\n", None, 0, "drivers/gpu/drm/amd"),
    (STEPS + "[1.2] XFS (nvme0n1): Mounting V5 Filesystem\n", None, 0, "fs/xfs"),
    ("RuntimeError: CUDA driver error: unknown error\n", "gpu-lost", 69, "c10/cuda"),
    ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.\n", "gpu-lost", 69, "c10/cuda"),
    ("pycuda._driver.RuntimeError: cuInit failed: unknown error\n", "gpu-lost", 69, "pycuda"),
    ("cudaSetDevice failed: 46\n", "gpu-lost", 69, "cuda.h"),
    ("RuntimeError: NCCL Error 2: unhandled system error\n", "nccl-error", 75, "torch 1.5"),
    ("OSError: Unable to open file (file read failed: errno = 5, error message = 'x')\n", "filesystem", 75, "h5py"),
    (
        "OSError: Caught OSError in DataLoader worker process 0.\nOSError: [Errno 116] Stale file handle: '/data/x'\n",
        "filesystem",
        75,
        "torch.utils.data",
    ),
    ("srun: error: slurm_receive_msgs: [[n1]:6818] failed: Socket timed out on send/recv operation\n", "launch", 75, "srun"),
    ("srun: error: Unable to create step for job 5: Job/step already completing or completed\n", "exit", 1, "slurm_errno.c"),
    ("slurmd: error: Could not launch job 5 and not able to requeue it, cancelling job\n", "launch", 69, "slurmd"),
    ("Message: Preempted by pod x on node y\n", "evicted", 75, "kube-scheduler"),
    ("The node was low on resource: memory. Container x was using 3Gi\n", "host-out-of-memory", 78, "kubelet"),
    ("EI0006: [PID: 1] Getting socket times out.\nEZ9999: Inner Error!\n", "rendezvous", 75, "CANN"),
    ("jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses\n", "rendezvous", 75, "jaxlib"),
    ("Illegal instruction (core dumped)\n", "killed", 1, "bash"),
    ("*** SIGTERM (@0x1) received by PID 5 (TID 0x1) from PID 6; stack trace: ***\n", "killed", 75, "glog"),
    ("*** SIGSEGV (@0x0) received by PID 5 (TID 0x1) from PID 0; stack trace: ***\n", "killed", 1, "glog"),
    (f"n1:1:2 [0] {COMPLETION}status=5 opcode=0 len=0 vendor err 244 (Send)\n", "nccl-error", 75, "NVIDIA/nccl, net_ib"),
    ("n1:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got fatal async error event: port error(10)\n", "network-device", 69, "NVIDIA/nccl"),
    # Servers that are busy or close the connection
    (TRACE + "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: x\n", "network", 75, "hub"),
    (
        TRACE + "urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(10 bytes read)')\n",
        "network",
        75,
        "urllib3",
    ),
    (TRACE + "http.client.RemoteDisconnected: Remote end closed connection without response\n", "network", 75, "http.client"),
    # A GPU that JAX does not see, and one that two ranks were given
    (TRACE + "RuntimeError: Unable to initialize backend 'cuda': No visible GPU devices.\n", "gpu-lost", 69, "jax"),
    (
        TRACE + "torch.distributed.DistBackendError: NCCL error in: x.cpp:1333, invalid usage, NCCL version 2.18.1\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000\n",
        "configuration",
        78,
        "NCCL init.cc",
    ),
    (
        "*** SIGBUS (@0x7f5d2c000000) received by PID 4021 (TID 0x7f5d) from PID 7; stack trace: ***\n",
        "shared-memory",
        78,
        "glog",
    ),
    # Behind labels that leave a space, or none
    ("".join(f"\x1b[36m(Trainer pid=42)\x1b[0m {line}\n" for line in [*"abcd", "MemoryError"]), "host-out-of-memory", 78, "Ray"),
    ("1: MemoryError\n", "host-out-of-memory", 78, "srun --label"),
    ("[default3]:pretrain.py: error: unrecognized arguments: --fp8-x\n", "configuration", 78, "torchrun"),
    ("".join(f"10-0-0-1 >> {line}\n" for line in ["a", "double free or corruption (!prev)"]), "killed", 1, "ms-swift"),
    (
        '[default3]:^CTraceback (most recent call last):\n[default3]:  File "x.py", line 1, in <module>\n'
        "[default3]:KeyboardInterrupt\n",
        "killed",
        75,
        "a terminal's echo before the heading",
    ),
    # Logged as a warning; the program went on
    (
        "WARNING: flash_attn is not used:\n"
        + TRACE
        + "ImportError: libcudart.so.11.0: cannot open shared object file\n"
        + "".join(f"loading shard {number}\n" for number in range(8)),
        None,
        0,
        "an optional module",
    ),
    # A number behind the words, not words alone
    ("CUDA error: 999\n", "gpu-lost", 69, "cuda.h"),
    ("CUDA error: (100) no device\n", "gpu-lost", 69, "cuda.h"),
    # MPI's launchers
    (
        "mpirun noticed that process rank 3 with PID 0 on node n3 exited on signal 9 (Killed).\n",
        "killed",
        1,
        "orte/tools/orterun/help-orterun.txt",
    ),
    (
        "prterun noticed that process rank 3 with PID 88 on node n3 exited on signal 11 (Segmentation fault).\n",
        "killed",
        1,
        "prte/tools/prun/help-prun.txt",
    ),
    (
        "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated.\n",
        "exit",
        1,
        "orte/tools/orterun/help-orterun.txt",
    ),
    ("Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n", "exit", 1, "help-orterun.txt"),
    ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n", "exit", 1, "help-mpi-api.txt"),
    ("application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3\n", "exit", 1, "mpich abort.c"),
    ("Abort(1090831) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init\n", "exit", 1, "mpich"),
    (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 9\n"
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n",
        "killed",
        1,
        "mpich hydra",
    ),
    ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)\n", "killed", 75, "mpich hydra"),
    (
        TRACE + "ValueError: bad\nmpirun detected that one or more processes exited with non-zero status\n",
        "traceback",
        78,
        "both",
    ),
]


@pytest.mark.parametrize("row", CAUSES)
def test_what_ended_the_job(row: Row, tmp_path: Path) -> None:
    check_cause(row, tmp_path)


JAVA = """\
ready
Exception in thread "main" org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.failJob(DAGScheduler.scala:2844)
Caused by: java.lang.IllegalStateException: the reader is closed
\tat com.example.Reader.next(Reader.java:12)
\t... 12 more
Caused by: java.io.EOFException: premature end of shard-7
\tat com.example.Reader.fill(Reader.java:88)
\t... 14 more
"""


@pytest.mark.parametrize(
    ("text", "fault", "message"),
    [
        (JAVA, "traceback", "java.io.EOFException: premature end of shard-7"),
        (
            JAVA.replace("java.io.EOFException: premature end of shard-7", "java.net.ConnectException: Connection refused"),
            "network",
            "java.net.ConnectException: Connection refused",
        ),
        # Logged and survived, also before another failure
        (JAVA.replace('Exception in thread "main"', "WARN try again:") + "goes on\n" * 12, None, "no failure"),
        (
            JAVA.replace('Exception in thread "main"', "WARN try again:")
            + 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 3\n',
            "traceback",
            "KeyError: 3",
        ),
    ],
    ids=["chain", "network", "survived", "another"],
)
def test_the_innermost_cause_of_a_java_exception(text: str, fault: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text)
    cause = tail_cause([str(tmp_path / "a.log")])
    assert (cause.fault, cause.message) == (fault, message)
    assert cause.severity == ("critical" if fault else None)
