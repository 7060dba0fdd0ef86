"""The rows of `formats.table.PARSERS` for trainers that fine-tune, and for those of reinforcement learning."""

from lt_monitor.logs.line_parsers import Parser
from lt_monitor.logs.trainers import litgpt, mlx, slime, torchtune, verl

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
)
