"""Choose the samples of a rank's micro batches, and the weights of the micro batches.

A skipped sample counts nothing. Another sample in the global batch takes its row, so that skipped data reaches neither the expert
router nor an fp8 scale, and an infinity in skipped data makes no NaN in the masked loss. The weight of a micro batch is
proportional to its number of counted samples. So the mean over the step's micro batches, on all ranks, is the mean over the
step's counted samples. If all samples of a step are skipped, the step has no micro batches.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from lt_train.config.settings.batches import Batches
from lt_train.config.settings.skipping import Skipping


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """`numbers` are the samples of the rows. `row_counts` says whether a row counts; None if all rows count."""

    numbers: Sequence[int]
    row_counts: Sequence[bool] | None = None
    weight: float = 1.0


def plan(
    batches: Batches, skipping: Skipping, rank: int, ranks: int, samples: int, first_sample: int, first_step: int
) -> Iterator[MicroBatch]:
    """Yield the micro batches of data-parallel rank `rank` from `first_sample` on, the first sample of step `first_step`."""
    size = batches.micro_batch_size
    if not skipping:
        yield from unskipped(size, rank, ranks, range(first_sample, samples))
        return
    begin, step = first_sample, first_step
    while begin + (count := batches.size_at(begin)) <= samples:
        numbers = range(begin, begin + count)
        skipped = skipping.skipped(step, numbers)
        if not skipped:
            yield from unskipped(size, rank, ranks, numbers)
        elif len(skipped) < count:
            yield from _with_skipped(size, rank, ranks, numbers, skipped)
        begin, step = begin + count, step + 1


def unskipped(size: int, rank: int, ranks: int, numbers: range) -> Iterator[MicroBatch]:
    """Yield micro batches of `size` samples."""
    for start in range(numbers.start + rank * size, numbers.stop - size + 1, size * ranks):
        yield MicroBatch(range(start, start + size))


def _with_skipped(size: int, rank: int, ranks: int, numbers: range, skipped: list[int]) -> Iterator[MicroBatch]:
    left_out = set(skipped)
    included = [number for number in numbers if number not in left_out]
    replacements = {number: included[place % len(included)] for place, number in enumerate(skipped)}
    for batch in unskipped(size, rank, ranks, numbers):
        row_counts = [number not in left_out for number in batch.numbers]
        weight = sum(row_counts) * len(numbers) / (size * len(included))
        yield MicroBatch([replacements.get(number, number) for number in batch.numbers], row_counts, weight)
