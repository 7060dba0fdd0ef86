"""Steps that a trainer prints over many lines: DeepSpeed, OLMo, Composer.

The first line names the step, and each line below it has values, until a line that has none. A block of the log may end within a
step: what was read is an event at once, because the last step of a log has no line behind it, and the rest is another event of
the same step, which `Steps.join` puts together. Which step that is belongs to the parser's state, which can be stored as JSON.
"""

from typing import Any, NamedTuple

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import ManyLines
from lt_monitor.logs.lines import Line
from lt_monitor.logs.trainers import composer, deepspeed, olmo

TRAINERS: dict[str, ManyLines] = {"deepspeed": deepspeed.STEP, "olmo": olmo.STEP, "composer": composer.STEP}
MAXIMUM_LINES = 10_000

_WHOLE_STEP = frozenset({"v", "kind", "step", "total_steps", "epoch", "time", "task", "rank", "node"})


class Head(NamedTuple):
    """The first line of a step: whose it is, and its values. `is_engine`: a trainer above it may report the same step."""

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
    """The step whose lines are read. `state` continues another one's work, as `to_record` gave it."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        self._trainer: str | None = state.get("trainer")
        self._record: Record = state.get("record", {})
        self._lines: int = state.get("lines", 0)

    def to_record(self) -> Record:
        return {"trainer": self._trainer, "record": self._record, "lines": self._lines}

    def begin(self, trainer: str, record: Record) -> None:
        """Take the first line."""
        self._trainer, self._record, self._lines = trainer, record, 0

    def read(self, block: bytes, begin: int, offset: int) -> Record | None:
        """The step with the lines from `begin` in the block; None when they add nothing to what was told already."""
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
        self._record = {field: value for field, value in {**record, **added}.items() if field in _WHOLE_STEP}
        if "step" not in self._record or ("src" not in record and not added):
            return None
        return {**record, **added, "src": record.get("src", {"offset": offset + start})}


def _values(trainer: ManyLines, raw: bytes) -> dict[str, Any] | None:
    """Of a line, which launchers may have put a prefix before."""
    if raw[:1] in b" \t":
        found = trainer.below(raw)
        if found is not None:
            return found
    line = Line(raw, 0)
    return trainer.below(line.text[line.body :])
