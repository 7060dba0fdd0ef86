"""The rows of `table.PARSERS` for machines, schedulers and clouds."""

from lt_monitor.logs.formats import (
    accelerators,
    batch_systems,
    filesystems,
    intel,
    kernel,
    launch,
    launchers,
    notices,
    process_exits,
)
from lt_monitor.logs.line_parsers import Parser

MACHINE_PARSERS: tuple[tuple[Parser, tuple[bytes, ...]], ...] = (
    (
        kernel.crash,
        (b"]: segfault at ", b"kernel: traps: ", b"Illegal instruction", b"Floating point exc", b" received by PID", b" traps: "),
    ),
    (kernel.machine, (b"soft lockup", b"ard LOCKUP", b"hard lockup", b"Kernel panic", b"[Hardware Error]", b"mce: Uncorrect")),
    (kernel.machine, (b"Memory failure: 0x", b" UE memory", b"severity=Uncorrected", b"containment event")),
    (
        accelerators.rocm,
        (b"access fault by GPU", b"page fault (src_id", b"L2_PROTECTION_FAULT", b"GPU Hang", b"HSA_STATUS_ERROR"),
    ),
    (
        accelerators.rocm,
        (b" timeout, signaled", b"amdgpu_job_timedout", b"lost from bus", b"GPU reset", b" HWS hang", b"fence wait loop"),
    ),
    (
        accelerators.rocm,
        (b"hipError", b"no ROCm-capable", b"No HIP GPUs", b"RAS poison", b"ncorrectable error", b"ncorrectable hardware"),
    ),
    (accelerators.rocm, (b"initialize SMU", b"not right state", b"fatal error event")),
    (intel.error, (b"Device acquire failed", b"Device already acq", b"habanalabs hl", b"habanalabs 0", b"MODULE:PT_DEVMEM")),
    (
        intel.error,
        (
            b"ERROR_DEVICE_LOST",
            b"ERROR_DEVICE_REQ",
            b"ERROR_OUT_OF_DEVICE",
            b"ERROR_OUT_OF_RESOURCES",
            b" GPU HANG",
            b"Timedout job",
        ),
    ),
    (intel.error, (b"device wedged", b"declared wedged", b"Resetting chip for", b"GT reset failed", b"memory cat error")),
    (intel.error, (b"declared device", b"][error]", b"][critical]", b"Abort was called at")),
    (
        filesystems.client,
        (
            b"client was evicted by",
            b" not responding, timed",
            b"GPFS: 6027",
            b"lost membership",
            b"Lost membership",
            b"ceph: mds",
        ),
    ),
    (
        filesystems.client,
        (b"EXT4-fs ", b"XFS (nvme", b"XFS (sd", b"XFS (dm-", b"XFS (md", b"I/O error on dev", b"I/O error, dev", b"nvme nvme"),
    ),
    (launch.task, (b"Task launch for ", b"Application launch failed", b"Unable to create step", b"Unable to alloc")),
    (
        launch.task,
        (b"Unable to confirm alloc", b"Unable to contact slurm", b"submission failed", b"allocate failed", b"Failed to alloc"),
    ),
    (launch.task, (b" has been revoked", b"slurm_receive_msg", b" launch failed: ")),
    (launch.daemon, (b"Could not launch job",)),
    (launch.container, (b"error: pyxis: ",)),
    (launch.processes, (b"fork: Resource temporarily",)),
    (
        launchers.ending,
        (b" noticed that process rank", b"exited with non-zero status", b"a non-zero exit code", b"MPI_ABORT was invoked"),
    ),
    (launchers.ending, (b"BAD TERMINATION OF", b"WITH THE EXIT STRING", b"called MPI_Abort(", b" in comm ")),
    (launchers.ending, (b"=   KILLED BY SIGNAL", b"(first noticed rank ")),
    *((batch_systems.ending, words) for words in batch_systems.KEYWORDS),
    (process_exits.download, (b"curl: (", b"unable to resolve host", b": unable to access '")),
    (launchers.unstarted, (b"not enough slots", b"specified executable")),
    (launchers.report, (b"entrypoint command failed",)),
    (launchers.report, launchers.TRANSLATED_KEYWORDS),
    (
        launchers.report,
        (b" status failed cmd ", b"terminated with code ", b"ed: exit code", b"non-zero exit code: ", b"a non-zero status of "),
    ),
    (
        launchers.report,
        (
            b"task run with exit code",
            b"completed with exit code",
            b"return code list: [",
            b"with non-zero status ",
            b"ssh exited with ",
        ),
    ),
    (
        launchers.report,
        (b"terminated by signal ", b"Exited by signal ", b"Exited with exit code", b" exited with code ", b"make: *** ["),
    ),
    (launchers.report, (b"ted with exit ", b"ted with non-zero", b"ted with status", b"Process finished with")),
    (launchers.report, (b"]+  Exit ", b"]-  Exit ", b"]   Exit ", b"]  + ex", b"]  - ex", b"]    ex")),
    (launchers.report, (b"ontainer died with", b"ontainer stopped with", b"ontainer failed with")),
    (
        launchers.report,
        (b"]: *** [", b"Main process exited, ", b"zsh: killed", b"zsh: segmentation", b"zsh: abort", b"zsh: bus err"),
    ),
    (
        launchers.report,
        (b"zsh: terminated", b"zsh: hangup", b"zsh: illegal", b" Killed  ", b" killed  ", b"  Segmentation fault"),
    ),
    (launchers.report, (b" segmentation fault", b"ABORT!!! Out of all", b"ExecuteUserScriptError", b"training FAILURE")),
    (
        launchers.report,
        (b"BackoffLimitExceeded", b"specified backoff limit", b"Timed out waiting for job step", b"HYDRA_FULL_ERROR=1 for"),
    ),
    (
        accelerators.coordination,
        (b"Error: UNAVAILABLE: ", b"Error: ABORTED: ", b"DEADLINE_EXCEEDED: ", b"JAX distributed service"),
    ),
    (launch.program, (b"execve(): ", b"Can not execute ", b"Unable to exec")),
    (
        launch.daemon,
        (
            b"rolog failed",
            b"rolog hung",
            b"rolog error",
            b"rolog returned",
            b"rolog_complete failed",
            b"ask prolog",
            b"ask_prolog",
        ),
    ),
    (
        launch.daemon,
        (
            b"TaskProlog",
            b"Reason=Prolog",
            b"Reason=launch",
            b"JobLaunchFailure",
            b"job complete failure",
            b"launch failed requeued",
        ),
    ),
    (
        launch.daemon,
        (b"Munge encode failed", b"Munge decode failed", b"rotocol authentication", b"/munge: ", b"Munge cryptographic"),
    ),
    (launch.daemon, (b"Zero Bytes were", b"with a remote daemon", b"start one or more daemons", b"daemon has unexpectedly")),
    (
        notices.preemption,
        (b"ermination is imminent", b"pot interruption", b"pot Interruption", b"pot termination", b"pot Termination"),
    ),
    (
        notices.preemption,
        (b"pot instance ", b"pot Instance ", b"pot preemption", b"pot eviction", b"BidEvictedEvent", b"instances.preempted"),
    ),
    (
        notices.preemption,
        (b"be interrupted", b"be preempted", b"be terminated", b"be reclaimed", b"been preempted", b"was preempted"),
    ),
    (
        notices.preemption,
        (b"been interrupted", b"been reclaimed", b"was interrupted", b"being preempted", b"being terminated", b"got preempted"),
    ),
    (notices.preemption, (b" is preempted",)),
    (notices.preemption, (b'Preempt"', b": Preempt", b"reemption notice", b"PreemptScheduled", b"SpotInstanceTermination")),
    (notices.preemption, (b"ON_HOST_MAINTENANCE", b"worker preempted", b"TPU preempted", b" VM preempted")),
    (notices.preemption, (b"preemption_notifier", b"lame workers found", b"node shutdown", b"NodeShutdown", b"PREEMPTED")),
    (
        accelerators.coordination,
        (b"eartbeat timeout", b"missing heartbeats", b"oordination service", b"oordination agent", b"Barrier_id"),
    ),
    (accelerators.coordination, (b"barrier has failed", b"arrier timed out", b"arrier failed", b"RegisterTask")),
    (
        accelerators.tpu,
        (
            b"device halted premature",
            b"Halt is unexpected",
            b"TPU slice",
            b"TPU is already",
            b"TPU initialization",
            b"backend 'tpu'",
            b"health check failed",
        ),
    ),
    (accelerators.tpu, (b"initialize TPU", b"open TPU")),
    (
        accelerators.ascend,
        (b"HCCL error", b"HCCL function", b"hccl api failed", b"acl api failed", b"error code is 507", b"result = 507"),
    ),
    (
        accelerators.ascend,
        (b"ACL stream", b"NPU function error", b"AclrtSync", b"aicore exception", b"heartbeat lost", b"nner error is reported"),
    ),
    (accelerators.ascend, accelerators.ASCEND_KEYWORDS),
)
