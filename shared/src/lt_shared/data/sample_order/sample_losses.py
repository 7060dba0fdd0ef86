"""The losses of single samples: lines of JSON that lt-train writes while it trains, or computes from a checkpoint.

`SAVE/sample-losses.jsonl` has a line for each step (--log-sample-loss). A step that was trained again after a resume is there
twice, the later one counts. `lt-train score` prints lines in this form, one per sample.
"""

import json
import math
import os
from collections.abc import Container, Iterable, Sequence

from lt_shared.console import BadData
from lt_shared.files import storage, strict_json

FILE = "sample-losses.jsonl"
VERSION = 1
DIGITS = 7
FEWEST_BEFORE = 64


def line(step: int, first_sample: int, losses: Sequence[float]) -> str:
    """The losses, in nats per token, of the run's samples from number `first_sample` on, with a line break."""
    finite = [float(f"{loss:.{DIGITS}g}") if math.isfinite(loss) else None for loss in losses]
    record = {"v": VERSION, "kind": "sample_losses", "step": step, "first_sample": first_sample, "losses": finite}
    return json.dumps(record, separators=(",", ":")) + "\n"


def with_those_before(numbers: range) -> range:
    """Samples whose losses tell which of `numbers` stand out: these, and some that were trained on before."""
    return range(max(0, numbers.start - max(FEWEST_BEFORE, len(numbers))), numbers.stop)


def parse(lines: Iterable[bytes], wanted: Container[int], source: str) -> dict[int, float]:
    """The losses of the `wanted` samples by their numbers; infinite where one was no number. Raises BadData, naming `source`."""
    loss_by_sample: dict[int, float] = {}
    for number, text in enumerate(lines, 1):
        try:
            record = strict_json.loads(text)
            if record["v"] != VERSION or record["kind"] != "sample_losses":
                raise ValueError("not a line of losses")
            first = int(record["first_sample"])
            for sample, loss in enumerate(record["losses"], first):
                if sample in wanted:
                    loss_by_sample[sample] = math.inf if loss is None else float(loss)
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(f"{source}, line {number}: not the losses of samples: {error}") from None
    return loss_by_sample


def read(run: str | os.PathLike[str], wanted: Container[int]) -> dict[int, float]:
    """Read the losses that a run has logged, by sample; empty if the run logs none. Skips cut lines. Raises BadData."""
    path = f"{os.fspath(run)}/{FILE}" if storage.is_remote(run) else os.path.join(run, FILE)
    if not storage.exists(path):
        return {}
    with storage.open_read(path) as file:
        return parse((text for text in file if text.endswith(b"}\n")), wanted, path)
