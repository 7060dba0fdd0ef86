"""The commands that usually follow a run, printed when it ends on a terminal.

A job's log does not have them: nobody types commands there, and programs that read logs would meet them in every log.
"""

import shlex
import sys

from lt_shared.console import note
from lt_train.config.run_config import RunConfig


def note_next_steps(config: RunConfig) -> None:
    """Print one line with the commands that show, convert and continue the saved run."""
    save = config.checkpointing.save
    trains = config.benchmark is None and config.replay is None and config.scoring is None
    if save is None or config.checkpointing.is_remote or not trains or not sys.stderr.isatty():
        return
    run = shlex.quote(save.rstrip("/"))
    note(
        f"next: lt-monitor plot {run} -o report.html; lt-convert {run} --to hf -o {run}-hf;"
        f" the same command with more --train-iters than {config.batches.train_iters} continues"
    )
