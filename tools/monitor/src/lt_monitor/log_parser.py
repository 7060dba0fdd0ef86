"""From the bytes of a log line to an event record, whatever a launcher or a terminal put around the line.

A line of interest is found by its beginning, wherever in the physical line that is: labels of srun, torchrun, kubectl or Ray need
not be known one by one. The last beginning counts, so a line that a dying process left unfinished does not spoil the next one.
Most lines of a log are something else; a substring search in the bytes drops them before any decoding (about 1 GB a minute).
"""

import json
import re

from lt_monitor import events
from lt_monitor.events import Record
from lt_shared import run_log

START_ARGUMENTS = (
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
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "vocab_size",
    "padded_vocab_size",
    "max_position_embeddings",
    "lr",
    "log_interval",
    "save_interval",
    "eval_interval",
    "save",
    "load",
)

_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_LABELS = re.compile(
    r"(?:(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) |\[pod/[^\]]*\] |\s*\d+: |\[[a-z]+\d+\]: ?)*"
)
_BEGINNING = re.compile(
    r"(?:\[[\d-]{10} [\d:]{8}(?:\.\d+)?\] )?"
    r"(?:iteration +\d{1,15}/ *\d{1,15} \||validation\S* loss at iteration \d{1,15}\b"
    r"|successfully saved checkpoint (?:from|at) iteration +\d{1,15} to |successfully loaded checkpoint from )"
    r"|Processed \d{1,15} documents "
)
_LAST_PAIR = re.compile(r"number of nan iterations: +\d+ \|")
_RECORD = re.compile(rb'\{"v": ?1, ?"kind": ?')


class LogParser:
    """Parses the lines of one log in order. `arguments` holds the part of an argument dump that was read so far.

    `malformed` counts lines that begin like an event record but are none; `first_malformed` says where and why.
    """

    def __init__(self, arguments: Record | None = None, arguments_offset: int = 0):
        self.arguments = arguments
        self.arguments_offset = arguments_offset
        self.malformed = 0
        self.first_malformed = ""

    def parse(self, line: bytes, offset: int) -> Record | None:
        """The event in one line that starts at byte `offset`, with its `offset` under `src`; None for other lines."""
        if b'"kind"' in line and (beginnings := list(_RECORD.finditer(line))):
            return self._record(line[beginnings[-1].start() :], offset)
        dashed = b"arguments -" in line
        if not (dashed or b"iteration" in line or b"Processed " in line or (self.arguments is not None and b" .." in line)):
            return None
        text = _CONTROL_SEQUENCE.sub("", line.decode(errors="replace")).rstrip("\r\n")
        labels = _LABELS.match(text)
        assert labels is not None
        if dashed or self.arguments is not None:
            record = self._argument(text[labels.end() :], offset)
            if record is not None:
                return record
        found = list(_BEGINNING.finditer(text))
        if not found:
            return None
        body = text[found[-1].start() :]
        event = run_log.parse(body) or _parse_without_tail(body)
        if event is None:
            return None
        record = events.from_log(event)
        if labels["time"] and "time" not in record:
            record["time"] = labels["time"]
        record["src"] = {"offset": offset}
        return record

    def _argument(self, text: str, offset: int) -> Record | None:
        """Take one line of the argument dump; the record of the whole dump at its end."""
        if run_log.ARGUMENTS_BEGIN.fullmatch(text):
            self.arguments = {}
            self.arguments_offset = offset
        elif self.arguments is not None and run_log.ARGUMENTS_END.fullmatch(text):
            record = {
                "v": events.VERSION,
                "kind": "start",
                "arguments": self.arguments,
                "src": {"offset": self.arguments_offset},
            }
            self.arguments = None
            return record
        elif self.arguments is not None and (match := run_log.ARGUMENT.fullmatch(text)) and match[1] in START_ARGUMENTS:
            value = _value(match[2])
            if value is not None:
                self.arguments[match[1]] = value
        return None

    def _record(self, line: bytes, offset: int) -> Record | None:
        """A line that is an event record already; it keeps its run and source when it has them."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason: str | None = f"not JSON: {error}"
        else:
            reason = events.problem(record)
        if reason is None:
            source = record.get("src")
            record["src"] = {"offset": offset, **source} if isinstance(source, dict) else {"offset": offset}
            return dict(record)
        self.malformed += 1
        self.first_malformed = self.first_malformed or f"at byte {offset}: {reason}"
        return None


def _parse_without_tail(body: str) -> run_log.Event | None:
    """A step line that another process continued; only one that is complete, hence the look for its last pair."""
    end = _LAST_PAIR.search(body)
    return run_log.parse(body[: end.end()]) if end else None


def _value(text: str) -> int | float | str | None:
    """An argument's value: a number where it is one, None for Python's None."""
    if text == "None":
        return None
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
