"""Read steps that a trainer prints over many lines: DeepSpeed, OLMo, Composer, NeMo-RL, AReaL.

The first line names the step. Each line below has values; the first line without values ends the step. A block of the log may end
within a step. The lines read so far become an event at once, because no line follows the last step of a log. The remaining lines
become a second event for this step, and `Steps.join` merges both events. The open step is part of the parser's state (JSON).
"""

from typing import Any, NamedTuple

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import ManyLines
from lt_monitor.logs.lines import Line
from lt_monitor.logs.trainers import areal, composer, deepspeed, nemo_rl, olmo

TRAINERS: dict[str, ManyLines] = {
    "deepspeed": deepspeed.STEP,
    "olmo": olmo.STEP,
    "composer": composer.STEP,
    "nemo-rl": nemo_rl.STEP,
    "areal": areal.STEP,
}
MAXIMUM_LINES = 10_000

_WHOLE_STEP = frozenset({"v", "kind", "step", "total_steps", "epoch", "time", "task", "rank", "node"})


class Head(NamedTuple):
    """The first line of a step: its trainer and its values. `is_engine`: a trainer above the engine may report the step, too."""

    trainer: str
    record: Record
    is_engine: bool


def head(line: Line) -> Head | None:
    for name, trainer in TRAINERS.items():
        record = trainer.head(line)
        if record is not None:
            return Head(name, record, trainer.is_engine)
    return None


class OpenStep:
    """The step whose lines are being read. To continue an earlier parser, pass its `to_record()` as `state`."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        self._trainer: str | None = state.get("trainer")
        self._record: Record = state.get("record", {})
        self._lines: int = state.get("lines", 0)

    def to_record(self) -> Record:
        return {"trainer": self._trainer, "record": self._record, "lines": self._lines}

    def is_open(self) -> bool:
        return self._trainer is not None

    def begin(self, trainer: str, record: Record) -> None:
        """Start a step with its first line."""
        self._trainer, self._record, self._lines = trainer, record, 0

    def read(self, block: bytes, begin: int, offset: int) -> Record | None:
        """Read the step's lines from `begin` in the block; return its record, or None if the lines add no new values."""
        if self._trainer is None:
            return None
        trainer = TRAINERS[self._trainer]
        record = self._record
        added: Record = {}
        start = begin
        while begin < len(block):
            end = block.find(b"\n", begin)
            end = len(block) if end < 0 else end
            values = _values(trainer, block[begin:end]) if self._lines < min(trainer.most_lines, MAXIMUM_LINES) else None
            if values is None:
                self._trainer = None
                break
            self._lines += 1
            added["metrics"] = {**added.get("metrics", {}), **values.pop("metrics", {})}
            added |= values
            begin = end + 1
        if not added.get("metrics"):
            added.pop("metrics", None)
        if trainer.needs_values and "src" in record and not added:
            return None
        self._record = {field: value for field, value in {**record, **added}.items() if field in _WHOLE_STEP}
        if "step" not in self._record or ("src" not in record and not added):
            return None
        return {**record, **added, "src": record.get("src", {"offset": offset + start})}


def _values(trainer: ManyLines, raw: bytes) -> dict[str, Any] | None:
    """Read the values of a line, which may have a launcher's prefix."""
    if raw[:1] in b" \t":
        values = trainer.below(raw)
        if values is not None:
            return values
    line = Line(raw, 0)
    return trainer.below(line.text[line.body :])
