"""Read dumps over many lines: the trainer's arguments, and the table of timers.

The lines of a dump have no keywords, so they are read from the heading on. The log may end within a dump; the entries read so far
are part of the parser's state (JSON).
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import ARGUMENT, ARGUMENTS_HEADING

MAXIMUM_DUMP_BYTES = 1 << 20
MAXIMUM_ARGUMENT = 2**63

START_ARGUMENTS = frozenset(
    {
        "seq_length",
        "global_batch_size",
        "micro_batch_size",
        "train_iters",
        "train_samples",
        "world_size",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "data_parallel_size",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "group_query_attention",
        "kv_channels",
        "swiglu",
        "untie_embeddings_and_output_weights",
        "num_experts",
        "moe_router_topk",
        "moe_ffn_hidden_size",
        "vocab_size",
        "padded_vocab_size",
        "max_position_embeddings",
        "lr",
        "log_interval",
        "save_interval",
        "eval_interval",
        "save",
        "load",
        "bf16",
        "fp16",
        "async_save",
    }
)

_TIMERS = re.compile(rb"(?:(?P<what>\(min, max\)|max) time|\btimes) across ranks \(ms\):\s*$")
# With --timing-log-option all, a line for the timer and one for each rank.
_TIMER_OF_RANKS = re.compile(rb"\s{1,8}(?P<name>[A-Za-z][\w-]{0,60}):\s*$")
_RANK_TIME = re.compile(rb"\s{1,12}rank {1,8}(?P<rank>\d{1,7}): (?P<milliseconds>[\d.]{1,20})\s*$")
_TIMER = re.compile(
    rb" {2,12}(?P<name>[A-Za-z][\w-]{0,60}) ?\.{0,80}: (?:\((?P<minimum>[\d.]{1,20}), )?(?P<maximum>[\d.]{1,20})\)?\s*$"
)


@dataclasses.dataclass
class Dumps:
    """The entries of unfinished dumps and the offsets of their headings. The entries are None outside a dump."""

    arguments: Record | None = None
    arguments_offset: int = 0
    timers: Record | None = None
    timers_offset: int = 0

    def to_record(self) -> Record:
        return dataclasses.asdict(self)

    def relocate(self, offset: int, origin: Callable[[int], int]) -> None:
        """Map the offsets of dumps that began in the block at `offset` to the lines before their labels were removed."""
        if self.arguments_offset >= offset:
            self.arguments_offset = offset + origin(self.arguments_offset - offset)
        if self.timers_offset >= offset:
            self.timers_offset = offset + origin(self.timers_offset - offset)

    def is_open(self) -> bool:
        return self.arguments is not None or self.timers is not None

    def heading(self, line: Line) -> tuple[int, Record] | None:
        """Read the first or last line of a dump. At the last line, return the dump's record and the offset to sort it by."""
        if (match := ARGUMENTS_HEADING.search(line.text)) is not None:
            if not match["end"]:
                self.arguments, self.arguments_offset = {}, line.offset
            elif self.arguments is not None:
                record = {"kind": "start", "arguments": self.arguments, "src": {"offset": self.arguments_offset}}
                self.arguments = None
                return line.offset, record
        elif (match := _TIMERS.search(line.text)) is not None:
            self.timers, self.timers_offset = {}, line.offset
        return None

    def read_arguments(self, lines: Iterator[Line]) -> None:
        """Read lines between the first and the last line of the arguments."""
        for line in lines:
            if self.arguments is None:
                return
            if line.offset - self.arguments_offset > MAXIMUM_DUMP_BYTES:
                self.arguments = None
            elif (match := ARGUMENT.match(line.text, line.body)) is not None:
                name, value = match["name"].decode(), _value(match["value"].decode(errors="replace"))
                if name in START_ARGUMENTS and value is not None:
                    self.arguments[name] = value

    def read_timers(self, lines: Iterator[Line]) -> tuple[int, Record] | None:
        """Read timers until a line that is no timer, and return the table; return None if the table may continue."""
        assert self.timers is not None
        for line in lines:
            if self._read_rank_time(line):
                continue
            match = _TIMER.match(line.text, line.body)
            if match is None:
                if not self.timers:
                    self.timers = None
                    return None
                record = {
                    "kind": "note",
                    "note": "timers",
                    "message": ", ".join(self.timers)[:MESSAGE_CHARACTERS],
                    "fields": self.timers,
                    "src": {"offset": self.timers_offset},
                }
                self.timers = None
                return line.offset, record
            try:
                minimum, maximum = (float(match[part]) / 1000 if match[part] else None for part in ("minimum", "maximum"))
            except ValueError:
                continue
            times = {"max_seconds": maximum}
            self.timers[match["name"].decode()] = times if minimum is None else {"min_seconds": minimum, **times}
        return None

    def _read_rank_time(self, line: Line) -> bool:
        """Read a line of the table that has each rank's time, of which the fastest and the slowest rank stay."""
        assert self.timers is not None
        if (name := _TIMER_OF_RANKS.match(line.text, line.body)) is not None:
            self.timers[name["name"].decode()] = {}
            return True
        match = _RANK_TIME.match(line.text, line.body)
        if match is None or not self.timers:
            return False
        times = self.timers[next(reversed(self.timers))]
        try:
            seconds = float(match["milliseconds"]) / 1000
        except ValueError:
            return True
        rank = int(match["rank"])
        if seconds < times.get("min_seconds", math.inf):
            times |= {"min_seconds": seconds, "min_rank": rank}
        if seconds > times.get("max_seconds", -math.inf):
            times |= {"max_seconds": seconds, "max_rank": rank}
        return True


def _value(text: str) -> Any:
    """Convert an argument's text to a number, a boolean or None if it is one."""
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    try:
        number: int | float = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text
    return number if abs(number) < MAXIMUM_ARGUMENT else None
