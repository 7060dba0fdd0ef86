"""The samples of some steps, ranked by their losses, with the documents that their tokens come from."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_monitor.blame.spikes import StepRange
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.data.document_origins import origins, source_lines
from lt_shared.data.document_origins.origins import Origins
from lt_shared.data.sample_order import loss_level, run_order, sample_losses
from lt_shared.data.sample_order.run_order import AttemptOrder
from lt_shared.data.sample_order.samples import Samples, Span

EXCERPT_CHARACTERS = 240
FEWEST_OTHERS = 8
FEWEST_IN_STEP = 4
LOWER = 0.25


@dataclasses.dataclass(frozen=True)
class DocumentPart:
    """The `tokens` tokens of a document from `first_token` on, of `document_tokens`, that a sample has.

    `path`, `line` (or `row`) and `offset` are None where they are not known, `text` where the source is not there; `problem` then
    says why.
    """

    document: int
    first_token: int
    tokens: int
    document_tokens: int
    path: str | None = None
    unit: str = "line"
    line: int | None = None
    offset: int | None = None
    text: str | None = None
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class BlamedSample:
    """Sample `sample` of the run, which step `step` has trained on. `documents` are None of samples that are not shown."""

    sample: int
    step: int
    loss: float | None
    is_suspect: bool
    dataset: str
    documents: list[DocumentPart] | None = None


@dataclasses.dataclass(frozen=True)
class Blame:
    """The samples of `steps`, the most outlying loss first.

    A sample with a loss beyond `loss_limit` is suspect. `median_loss` is the median of the samples for comparison. Both are None
    without losses.
    """

    steps: StepRange
    samples: list[BlamedSample]
    loss_limit: float | None = None
    median_loss: float | None = None

    @property
    def shaken(self) -> int:
        """How many samples are above the limit that are not suspect: in steps all of whose samples are, after a suspect one."""
        if self.loss_limit is None or self.steps.is_dip:
            return 0
        return sum(not sample.is_suspect and _or_none(sample.loss) > self.loss_limit for sample in self.samples)

    @property
    def suspects(self) -> list[int]:
        """The samples to leave out: those that stand out, or all where no losses are known."""
        return sorted(sample.sample for sample in self.samples if sample.is_suspect)

    def to_record(self) -> dict[str, Any]:
        record = dataclasses.asdict(self) | {"steps": [self.steps.first, self.steps.last], "is_dip": self.steps.is_dip}
        for sample in record["samples"]:
            if sample["loss"] is not None and not math.isfinite(sample["loss"]):
                sample["loss"] = None
        return record


class RunSamples:
    """The samples of a run, in the order of its attempts."""

    def __init__(self, run: str):
        self.run = run
        self.attempts = run_order.read(run)
        self._opened: dict[int, Samples] = {}

    def of_steps(self, steps: StepRange) -> tuple[AttemptOrder, range]:
        """The attempt that did `steps`, and the numbers of their samples. Raises BadData for steps that the run lacks."""
        attempt = run_order.of_step(self.attempts, steps.last)
        return attempt, run_order.samples_of(self.attempts, steps.first, steps.last)

    def samples(self, attempt: AttemptOrder) -> Samples:
        """The samples of an attempt, opened once."""
        number = self.attempts.index(attempt)
        if number not in self._opened:
            self._opened[number] = attempt.training_samples(Path(self.run))
        return self._opened[number]


def blame(run: RunSamples, steps: StepRange, losses: Mapping[int, float], shown: int | None, are_logged: bool = False) -> Blame:
    """Look at `steps`; documents of the first `shown` samples, None for all.

    Losses that `are_logged` are each of the weights of their step.
    """
    attempt, numbers = run.of_steps(steps)
    samples = run.samples(attempt)
    sign = -1 if steps.is_dip else 1
    usual = _usual(numbers, losses)
    blamed = []
    is_shaken = False
    for step, of_step in itertools.groupby(numbers, functools.partial(run_order.step_of, run.attempts)):
        in_step = {number: losses.get(number) for number in of_step}
        raised = _raised_by(in_step.values(), usual[0]) if is_shaken and usual else 0.0
        for number, loss in in_step.items():
            is_suspect = usual is None or (loss is not None and sign * (loss - usual[0]) > usual[1] + raised)
            blamed.append(BlamedSample(number, step, loss, is_suspect, attempt.datasets[samples.dataset(number)].prefix))
        is_shaken = are_logged and not steps.is_dip and (is_shaken or any(sample.is_suspect for sample in blamed))
    blamed.sort(key=lambda sample: (-sign * _or_none(sample.loss, sign), sample.sample))
    count = len(blamed) if shown is None else shown
    lookup = _Lookup([dataset.shards for dataset in attempt.datasets])
    with_documents = lookup.documents([samples.spans(sample.sample) for sample in blamed[:count]])
    for index, documents in enumerate(with_documents):
        blamed[index] = dataclasses.replace(blamed[index], documents=documents)
    return Blame(steps, blamed, usual and usual[0] + sign * usual[1], usual and usual[0])


def _or_none(loss: float | None, sign: int = 1) -> float:
    """Sort an unknown loss last."""
    return -sign * math.inf if loss is None else loss


def _raised_by(losses: Iterable[float | None], median: float) -> float:
    """Return the difference between the lower quartile of a step's losses and the `median` of earlier losses.

    A step that learns from bad samples raises every loss in the next steps, although those samples are good.
    """
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(finite) < FEWEST_IN_STEP:
        return 0.0
    return max(0.0, float(np.quantile(finite, LOWER)) - median)


def _usual(numbers: range, losses: Mapping[int, float]) -> tuple[float, float] | None:
    """Return the usual loss, and the distance from it at which a sample is suspect.

    The usual loss is the median of earlier samples, or the median of `numbers` if few earlier losses are known.
    """
    if not any(number in losses for number in numbers):
        return None
    before = [
        losses[number] for number in sample_losses.with_those_before(numbers) if number in losses and number < numbers.start
    ]
    compared = before if len(before) >= FEWEST_OTHERS else [losses[number] for number in numbers if number in losses]
    return loss_level.usual(compared)


class _Lookup:
    """Finds the documents of spans; opens every shard and every source file once.

    `shards` maps a dataset to its shard prefixes.
    """

    def __init__(self, shards: Sequence[Sequence[str]]):
        self._shards = shards
        self._opened: dict[tuple[int, int], _OpenedDataset] = {}

    def documents(self, spans: Sequence[Sequence[Span]]) -> list[list[DocumentPart]]:
        """The documents of every sample."""
        flat_spans = [span for of_sample in spans for span in of_sample]
        parts_by_index: list[DocumentPart | None] = [None] * len(flat_spans)
        for place in sorted({(span.dataset, span.shard) for span in flat_spans}):
            dataset = self._open(*place)
            indexes = [index for index, span in enumerate(flat_spans) if (span.dataset, span.shard) == place]
            for index, part in zip(indexes, dataset.parts([flat_spans[index] for index in indexes]), strict=True):
                parts_by_index[index] = part
        parts = iter([part for part in parts_by_index if part is not None])
        return [[next(parts) for _ in of_sample] for of_sample in spans]

    def _open(self, dataset: int, shard: int) -> "_OpenedDataset":
        if (dataset, shard) not in self._opened:
            self._opened[dataset, shard] = _OpenedDataset(self._shards[dataset][shard])
        return self._opened[dataset, shard]


class _OpenedDataset:
    def __init__(self, prefix: str):
        self.prefix = prefix
        self._reader = indexed_dataset.Reader(prefix, thorough=False, remote=True)
        sidecar = manifest.read_sidecar(prefix) or {}
        self._origins: Origins | None = origins.of_sidecar(sidecar, manifest.sidecar_path(prefix))
        options = sidecar.get("options")
        self._json_key = str(options.get("json_key", "text")) if isinstance(options, dict) else "text"

    def parts(self, spans: Sequence[Span]) -> list[DocumentPart]:
        """Find the document of every span."""
        if not spans:
            return []
        bounds, lengths = self._reader.document_indices, self._reader.sequence_lengths
        sequences = np.array([span.sequence for span in spans])
        documents = np.searchsorted(bounds, sequences, side="right") - 1
        places = self._origins.locate(documents) if self._origins else [None] * len(spans)
        lines = source_lines.read(places)
        parts = []
        for span, document, place, line in zip(spans, documents.tolist(), places, lines, strict=True):
            first, last = int(bounds[document]), int(bounds[document + 1])
            before = int(lengths[first : span.sequence].sum(dtype=np.int64))
            total = int(lengths[first:last].sum(dtype=np.int64))
            start = before + span.start
            parts.append(
                DocumentPart(
                    document,
                    start,
                    span.length,
                    total,
                    place.path if place else None,
                    "row" if place and place.kind == "row" else "line",
                    line.line,
                    line.offset,
                    _excerpt(line.texts(self._json_key), start / max(total, 1)),
                    line.problem,
                )
            )
        return parts


def _excerpt(texts: list[str] | None, share: float) -> str | None:
    """The text near the beginning of the sample's part; only near, because tokens differ in length."""
    if texts is None:
        return None
    text = "".join(texts)
    start = int(len(text) * share)
    return text[start : start + EXCERPT_CHARACTERS]
