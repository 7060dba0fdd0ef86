"""Lines for a person at a terminal: what the ranks do before the first step, and the commands that usually follow a run.

A job's log does not have them: nobody types commands there, and programs that read logs would meet them in every log.
"""

import shlex
import sys

from lt_shared.console import note
from lt_train.config.settings.checkpointing import Checkpointing


def note_start() -> None:
    """Say what the next seconds go into; a large model's first step can take minutes."""
    if sys.stderr.isatty():
        note("starting: importing PyTorch and megatron-core, building the model, compiling kernels for the first step")


def note_next_steps(checkpointing: Checkpointing, train_iters: int) -> None:
    """Print one line with the commands that show, convert and continue the saved run of `train_iters` steps."""
    save = checkpointing.save
    if save is None or checkpointing.is_remote or not sys.stderr.isatty():
        return
    run = shlex.quote(save.rstrip("/"))
    note(
        f"next: lt-monitor plot {run} -o report.html; lt-convert {run} --to hf -o {run}-hf;"
        f" the same command with more --train-iters than {train_iters} continues"
    )
