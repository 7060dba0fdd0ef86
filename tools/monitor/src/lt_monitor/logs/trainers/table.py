"""Rows of `formats.table.PARSERS`: trainers for fine-tuning and reinforcement learning, and other events of some trainers."""

from lt_monitor.logs.line_parsers import Parser
from lt_monitor.logs.trainers import (
    arctic_training,
    composer,
    levanter,
    litgpt,
    maxtext,
    mlx,
    olmo,
    openrlhf,
    prime_rl,
    slime,
    torchtune,
    verl,
)

TUNING_PARSERS: tuple[tuple[Parser, tuple[bytes, ...]], ...] = (
    (verl.step, (b" - actor/", b" - train/loss:", b"/global_step:", b" - timing_s/", b" - global_seqlen/", b" - val/loss:")),
    (torchtune.bar, (b"|Loss: ",)),
    (torchtune.step, (b" | loss:",)),
    (litgpt.step, (b"iter time: ",)),
    (litgpt.evaluation, (b": val loss ",)),
    (mlx.step, (b": Train loss ",)),
    (mlx.evaluation, (b": Val loss ",)),
    (mlx.checkpoint, (b": Saved adapter weights", b": Saved final weights")),
    (slime.step, (b": {'train/",)),
    (prime_rl.step, (b" | Loss: ",)),
    (arctic_training.step, (b" | iter time: ",)),
    (openrlhf.step, (b"Global step ",)),
    (openrlhf.bar, (b"Train step of epoch ",)),
)

OTHER_EVENTS: tuple[tuple[Parser, tuple[bytes, ...]], ...] = (
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
    (prime_rl.ending, (b" trainer finished!",)),
)
