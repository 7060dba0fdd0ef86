"""Which parser reads which lines: the one table of keywords.

Keywords are at least seven bytes long (see `prefilter`). A line goes to the parsers of all keywords in it, in the order of this
table, until one of them recognises it.
"""

from lt_monitor.logs.formats import Parser, benchmarks, devices, jobs, memory, nccl, process_exits
from lt_monitor.logs.formats.trainers import (
    automodel,
    aws_fsdp,
    composer,
    deepspeed,
    huggingface,
    levanter,
    llmc,
    maxtext,
    megatron,
    modded_nanogpt,
    nanochat,
    nanogpt,
    nanotron,
    nemo,
    neuronx,
    olmo,
    torchtitan,
)

PARSERS: tuple[tuple[Parser, tuple[bytes, ...]], ...] = (
    (megatron.step, (b"elapsed time per iteration", b"elapsed_time_per_iteration", b"lm loss:", b"number of nan iterations")),
    (torchtitan.step, (b"memory:", b"validate step:")),
    (nemo.step, (b"reduced_train_loss", b"global_step")),
    (neuronx.example_step, (b" step_time ",)),
    (neuronx.lightning_step, (b" loss is ",)),
    (automodel.step, (b" | loss ", b" | epoch ", b" | val_loss ")),
    (aws_fsdp.step, (b", Speed: ",)),
    (nanotron.step, (b"| consumed_tokens: ",)),
    (nanochat.step, (b" | loss: ",)),
    (nanogpt.step, (b": loss ", b" | loss ")),
    (llmc.step, (b" | loss ", b" | train loss ", b": train loss ")),
    (huggingface.figures, (b"'loss': ", b"'eval_loss': ", b"'train_runtime': ", b'"loss": ')),
    (modded_nanogpt.step, (b" train_time:",)),
    (deepspeed.pipeline_step, (b" iter time (s): ",)),
    (maxtext.step, (b"completed step: ",)),
    (levanter.step, (b"Progress on:train ",)),
    (levanter.tracked, (b'"event": "log"',)),
    (composer.step, (b"loss/train/total",)),
    (benchmarks.mlperf, (b":::MLLOG",)),
    (megatron.evaluation, (b"lm loss value", b"lm_loss value", b"lm-loss value")),
    (aws_fsdp.evaluation, (b" Validation loss: ",)),
    (nanochat.evaluation, (b" Validation loss: ",)),
    (nanogpt.evaluation, (b", val loss ",)),
    (llmc.evaluation, (b"val loss ",)),
    (megatron.checkpoint, (b"successfully saved", b"saving checkpoint at", b"successfully loaded", b"checkpoint of iteration")),
    (automodel.checkpoint, (b"Saving checkpoint to", b"Loading checkpoint from")),
    (
        aws_fsdp.checkpoint,
        (b"Writing checkpoint to", b"Loading checkpoint from", b"Checkpoint loaded from", b"Completed checkpoint."),
    ),
    (nanotron.checkpoint, (b"Saving checkpoint at", b"Loading checkpoint from")),
    (nanogpt.checkpoint, (b"saving checkpoint to ",)),
    (llmc.checkpoint, (b"Writing checkpoint at",)),
    (torchtitan.checkpoint, (b"ing the checkpoint", b"Last step checkpoint")),
    (deepspeed.overflow, (b"OVERFLOW! Rank ",)),
    (deepspeed.ending, (b"exits successfully",)),
    (maxtext.evaluation, (b"eval metrics after step: ",)),
    (
        maxtext.checkpoint,
        (b"checkpoint save for step ", b" a checkpoint at step ", b"Save Finalize is done", b"run's directory step "),
    ),
    (maxtext.parameters, (b"number parameters: ",)),
    (levanter.evaluation, (b"validation loss: ", b" eval loss: ")),
    (levanter.checkpoint, (b"checkpoint at step ",)),
    (composer.evaluation, (b" Eval metrics/", b" Eval loss/eval")),
    (olmo.evaluation, (b"/CrossEntropyLoss=", b"/CE loss=")),
    (olmo.checkpoint, (b"checkpoint for step ", b"Checkpoint for step ", b"Checkpoint saved to ", b"Loading checkpoint from ")),
    (olmo.ending, (b"Training complete",)),
    (megatron.documents, (b" documents (",)),
    (megatron.progress, (b"\t# GPUs: ",)),
    (megatron.lifecycle, (b"] datetime: ", b"exiting program ", b"ended by ", b"time to initialize megatron")),
    (torchtitan.lifecycle, (b"Training starts at", b"Trainer is initialized with", b"Training completed")),
    (
        torchtitan.lifecycle,
        (b"with args: {", b"with config", b"device mesh with", b"memory allocation retries", b" total parameters"),
    ),
    (huggingface.lifecycle, (b"Saving model checkpoint to", b"Total optimization steps", b"Total train batch size")),
    (huggingface.lifecycle, (b"training from global step",)),
    (nemo.lifecycle, (b"saving model to '", b"Restored all states", b"Trainer.fit` stopped")),
    (
        megatron.notes,
        (b"parameters on (tensor", b"iterations) memory (MB)", b"GPU utilization: ", b"MnRtt/Rnk", b"lowest Etpt"),
    ),
    (
        megatron.notes,
        (b"waiting for data since",),
    ),
    (benchmarks.wandb, (b"Syncing run ", b"View run ", b"Run summary:", b"wandb sync ")),
    (devices.xid, (b"NVRM: Xid", b"SXid (PCI")),
    (devices.lost, (b"RmInitAdapter failed", b"rm_init_adapter failed")),
    (devices.lost, (b"fallen off the bus", b"GPU is lost", b"GPU_IS_LOST", b"GPU lost from", b"determine the device handle")),
    (
        devices.lost,
        (b"uncorrectable NVLink", b"no CUDA-capable", b"system not yet init", b"SYSTEM_NOT_READY", b"busy or unavailable"),
    ),
    (devices.lost, (b"launch timed out", b"Got async event", b" Link DOWN", b"Link is Down", b"health compromised")),
    (devices.hung_task, (b"INFO: task ",)),
    (memory.shared, (b"shared memory", b"</torch_", b"to extend /dev/shm", b"posix_fallocate failed", b"No space left on")),
    (memory.shared, (b"Bus error", b"(SIGBUS)", b"failed (exitcode", b"exitcode  : ", b"with return code = ")),
    (memory.memory, (b"OutOfMemoryError", b"out of memory", b"oom_kill", b"oom-kill", b"OOMKilled", b"Out of memory")),
    (memory.memory, (b"OutOfMemory: ", b"DefaultCPUAllocator", b"RESOURCE_EXHAUSTED", b"NEURON_RT_RESOURCE", b"MemoryError")),
    (memory.memory, (b"_STATUS_ALLOC_FAILED", b"Resource exhausted", b"_OUT_OF_MEMORY", b"MemoryAllocation", b"bad_alloc")),
    (
        memory.memory,
        (b"OOM when allocating", b"NRT_RESOURCE", b"Cannot allocate memory", b"memory pressure", b"running low on memory"),
    ),
    (memory.memory, (b"on resource: memory", b"TERM_MEMLIMIT", b"memory limit")),
    (jobs.cancellation, (b" CANCELLED",)),
    (jobs.tasks, (b"srun: error: ", b"srun: Job step aborted", b"srun: Force Terminat", b"srun: terminat")),
    (jobs.node_failure, (b"Node failure on ", b"on failed node ", b"NODE_FAIL", b"TO NODE FAILURE", b" not responding, setting")),
    (jobs.limit, (b"PBS: job killed", b"TERM_RUNLIMIT", b"LSF run time limit")),
    (jobs.pod, (b"Exit Code: ", b"exitCode", b"exit code ", b"with code ", b"ExitCode: ", b"Evicted", b"low on resource: ")),
    (jobs.pod, (b"TaintManagerEviction", b" evicted", b"Preempted by ", b"DisruptionTarget")),
    (jobs.hyperpod, (b"[Auto Resume]",)),
    (
        nccl.timeout,
        (b"collective operation timeout", b"ast enqueued ", b"eartbeat monitor timed out", b"due to watchdog timeout"),
    ),
    (
        nccl.timeout,
        (b"watchdog got stuck", b"heartbeat of its watchdog", b"to dump debug info", b"watchdog hang", b"dump signal from"),
    ),
    (
        nccl.timeout,
        (b"induced hang", b"monitoredBarrier", b"Timed out waiting "),
    ),
    (nccl.timeout, (b"Received a dump signal", b"global timeout from", b"timeout signal from")),
    (nccl.mismatch, (b"mismatch between collectives",)),
    (nccl.rendezvous, (b"Rendezvous", b"DistNetworkError", b"DistStoreError", b"client socket has ", b"waiting for clients")),
    (
        nccl.rendezvous,
        (
            b"wait timeout after ",
            b"Address already in use",
            b"EADDRINUSE",
            b"failed to recv, got ",
            b"TCPStore",
            b"ocket Timeout",
        ),
    ),
    (nccl.error, (b"NCCL WARN", b"NCCL error", b"ncclSystemError", b"ncclRemoteError", b"ncclInternalError")),
    (nccl.error, (b"Some NCCL operations", b"entire process down")),
    (nccl.error, (b"ncclUnhandledCudaError", b"ncclInvalidUsage", b"ncclInvalidArgument")),
    (nccl.network, (b"elected Provider is", b"elected provider is", b"NET/Socket : Using")),
    (megatron.skipped, (b" samples skipped",)),
    (megatron.phase, (b" begins at iteration ",)),
    (megatron.recovery, (b"saved local checkpoint", b" the last before the failure", b" s, with iteration ")),
    (megatron.anomaly, (b"found NaN in", b"Unexpected result nan", b"gradients were not finite", b"loss spike at iteration")),
    (megatron.anomaly, (b" not saved: ",)),
    (process_exits.disk, (b"No space left on", b"Disk quota exceeded", b"StreamWriter failed", b"StorageFull", b"os error 28")),
    (process_exits.disk, (b"[Errno 28]", b"[Errno 122]", b"inline_container.cc", b"Error while serializing")),
    (process_exits.tracker, (b"initialization has timed out",)),
    (
        process_exits.not_a_number,
        (
            b"already at minimum",
            b"Minimum loss scale",
            b"loss is nan",
            b"Loss is nan",
            b"oss is inf",
            b"contains NaN",
            b"contain NaN",
            b" is NaN",
        ),
    ),
    (process_exits.arguments, (b": error: ", b"HfArgumentParser", b"No such option")),
    (
        devices.driver,
        (b"CUDA error:", b"CUDA Error: ", b"CUDNN_STATUS_", b"CUBLAS_STATUS_", b"cuda runtime error", b"CUDA_ERROR_"),
    ),
    (
        devices.driver,
        (b"CUDA driver error", b"uncorrectable ECC", b"ncorrectable ECC", b"ECC_UNCORRECTABLE", b"bit ECC", b"cudaError"),
    ),
    (
        devices.driver,
        (
            b"no kernel image",
            b"driver version is insufficient",
            b"HIP error: ",
            b"ECCUncorrectable",
            b"Cuda failure ",
            b"` failed",
        ),
    ),
    (devices.driver, (b"NRT_EXEC", b"NRT_FAILURE", b"NRT_TIMEOUT", b"NRT_HW_ERROR", b"NRT_UNINIT", b"NRT_LOAD", b"NRT_INVALID")),
    (
        devices.driver,
        (b"FATAL-RT-", b"NEURONCORE_NOT_AVAILABLE", b"Nrt::Load failed", b"nrt_load status", b"NetRegMr", b"R   ENC:"),
    ),
    (process_exits.exception, (b"Error: ", b"Exception: ", b"KeyboardInterrupt", b"AssertionError", b"NotImplementedError")),
    (
        process_exits.exception,
        (b"Uncaught ", b"RayTaskError", b"RuntimeError", b"MemoryError", b"ValueError", b"ProcessExitedException"),
    ),
    (
        process_exits.ending,
        (b"received by PID", b"failed (exitcode", b"Segmentation fault", b"Fatal Python error", b"exitcode  : "),
    ),
    (
        process_exits.ending,
        (
            b"ChildFailedError",
            b"Error executing job with",
            b"with return code = ",
            b"crashed with exit code",
            b") exited with code",
            b"orker died or was killed",
            b"actor died unexpectedly",
            b"process has died",
        ),
    ),
    (
        process_exits.ending,
        (b"type: SYSTEM_ERROR", b" Killed  ", b"Aborted (core dumped)", b"Process received signal", b"Caught signal "),
    ),
    (process_exits.tool_error, (b"lt-train: error: ",)),
)

# Of the first lines of steps that have many (`many_line_steps`).
HEADS = (b"[Rank 0] step=", b" [step=", b"\t[step=", b"[batch=", b"[token=", b"[sample=")


def keywords() -> dict[bytes, list[int]]:
    """Each keyword with the indexes of its parsers in `PARSERS`."""
    parsers: dict[bytes, list[int]] = {}
    for index, (_, words) in enumerate(PARSERS):
        for word in words:
            parsers.setdefault(word, []).append(index)
    return parsers
