"""Show training steps as rows of a table on a terminal. train.log has every number.

A row fits into 80 columns; Megatron's line takes four lines. The header is printed again before it has scrolled out of sight.
"""

import math
import shutil

from lt_shared.contracts.run_log import Step

HEADER = f"{'step':>17} {'loss':>10} {'tokens/s':>12} {'time left':>12}"
# Lines that other messages may take between two headers.
_SPARE_LINES = 6


class StepTable:
    def __init__(self) -> None:
        self._rows_since_header: int | None = None

    def lines(self, step: Step, tokens_per_second: float) -> list[str]:
        """Return the row of a step, with a header above it if no header is in sight."""
        visible = max(1, shutil.get_terminal_size().lines - _SPARE_LINES)
        begins = self._rows_since_header is None or self._rows_since_header >= visible
        self._rows_since_header = 1 if begins else (self._rows_since_header or 0) + 1
        loss = "-" if step.loss is None else f"{step.loss:.4f}"
        time_left = _duration((step.total_steps - step.step) * step.step_seconds) if step.step_seconds is not None else "-"
        count = f"{step.step:,}/{step.total_steps:,}"
        row = f"{count:>17} {loss:>10} {tokens_per_second:>12,.0f} {time_left:>12}"
        return [HEADER, row] if begins else [row]


def _duration(seconds: float) -> str:
    """Format a duration as `4:05`, `1:02:03` or `2 d 03:04`."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
