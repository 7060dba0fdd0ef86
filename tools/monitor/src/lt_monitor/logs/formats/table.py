"""Which parser reads which lines: the one table of keywords.

Keywords are at least seven bytes long (see `prefilter`). A line goes to the parsers of all keywords in it, in the order of this
table, until one of them recognises it.
"""

from lt_monitor.logs.formats import (
    Parser,
    automodel,
    aws_fsdp,
    benchmarks,
    composer,
    deepspeed,
    devices,
    huggingface,
    jobs,
    levanter,
    llmc,
    maxtext,
    megatron,
    modded_nanogpt,
    nanochat,
    nanogpt,
    nanotron,
    nccl,
    nemo,
    neuronx,
    olmo,
    process_exits,
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
    (benchmarks.wandb, (b"Syncing run ", b"View run ", b"Run summary:", b"wandb sync ")),
    (devices.xid, (b"NVRM: Xid", b"SXid (PCI")),
    (devices.memory, (b"OutOfMemoryError", b"out of memory", b"oom_kill", b"oom-kill", b"OOMKilled", b"Out of memory")),
    (devices.memory, (b"OutOfMemory: ", b"DefaultCPUAllocator", b"RESOURCE_EXHAUSTED", b"NEURON_RT_RESOURCE")),
    (jobs.cancellation, (b" CANCELLED",)),
    (jobs.tasks, (b"srun: error: ", b"srun: Job step aborted", b"srun: Force Terminat", b"srun: terminat")),
    (jobs.hyperpod, (b"[Auto Resume]",)),
    (
        nccl.timeout,
        (b"collective operation timeout", b"ast enqueued ", b"eartbeat monitor timed out", b"due to watchdog timeout"),
    ),
    (nccl.error, (b"NCCL WARN", b"NCCL error", b"ncclSystemError", b"ncclRemoteError", b"ncclInternalError")),
    (nccl.error, (b"ncclUnhandledCudaError", b"ncclInvalidUsage", b"ncclInvalidArgument")),
    (nccl.network, (b"elected Provider is", b"elected provider is", b"NET/Socket : Using")),
    (megatron.anomaly, (b"found NaN in", b"Unexpected result nan", b"gradients were not finite", b"loss spike at iteration")),
    (process_exits.disk, (b"No space left on", b"Disk quota exceeded")),
    (devices.driver, (b"CUDA error:", b"CUDNN_STATUS_", b"CUBLAS_STATUS_", b"NRT_EXEC", b"NRT_FAILURE", b"NRT_TIMEOUT")),
    (devices.driver, (b"FATAL-RT-", b"NEURONCORE_NOT_AVAILABLE", b"NRT_RESOURCE")),
    (process_exits.exception, (b"Error: ", b"Exception: ", b"KeyboardInterrupt", b"AssertionError", b"NotImplementedError")),
    (process_exits.ending, (b"received by PID", b"failed (exitcode", b"Segmentation fault", b"Bus error", b"Fatal Python error")),
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
