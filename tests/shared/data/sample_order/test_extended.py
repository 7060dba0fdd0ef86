"""The order of a run that has become longer: what was trained keeps its place, and no sample is skipped or comes twice."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.data.sample_order.parts import Source, part_of
from lt_shared.data.sample_order.samples import Samples, Span, StoredSequences


def load(part: Any, place: Path) -> Samples:
    directories = {index: Path(tempfile.mkdtemp(dir=place)) for index in part.indices}
    for index, directory in directories.items():
        index.make(directory)
    samples: Samples = part.load(directories)
    return samples


def sources(place: Path, lengths: list[list[int]]) -> list[Source]:
    for number, sequences in enumerate(lengths):
        synthetic.write(place / f"data{number}", sequences)
    opened = [StoredSequences(str(place / f"data{number}")) for number in range(len(lengths))]
    return [Source("", sequences, range(len(sequences.lengths)), 1.0 + number) for number, sequences in enumerate(opened)]


def spans(samples: Samples, count: int) -> list[list[Span]]:
    return [samples.spans(number) for number in range(count)]


@given(
    sequences=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    length=st.integers(1, 20),
    counts=st.lists(st.integers(1, 90), min_size=2, max_size=4, unique=True).map(sorted),
)
@settings(max_examples=25, deadline=None)
def test_each_length_begins_with_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[int], length: int, counts: list[int]
) -> None:
    """In one dataset, and in a blend in which each dataset has its own number of epochs."""
    place = tmp_path_factory.mktemp("data")
    both = sources(place, [sequences, [*sequences[::-1], 7]])
    for chosen in (both[:1], both):
        before: list[list[Span]] = []
        for number, count in enumerate(counts):
            samples = load(part_of(chosen, counts[: number + 1], length, 3), place)
            assert len(samples) >= count
            assert spans(samples, len(before)) == before
            before = spans(samples, count)
        # The first length has Megatron's order.
        assert spans(load(part_of(chosen, counts[0], length, 3), place), counts[0]) == before[: counts[0]]


def test_no_sample_is_skipped_or_comes_twice(tmp_path: Path) -> None:
    """Counted by hand: four epochs of 50 tokens are 49 samples of 4 tokens and a label, of which the last epoch is shuffled for
    itself. 50 samples need another epoch, of 12 samples, and 75 another two, of 24."""
    (source,) = sources(tmp_path, [[8, 12, 9, 21]])
    part = part_of([source], (40, 50, 75), 4, 3)
    assert [section.order for section in part.sections] == [(4, 3), (1, 0), (2, 1)]
    samples = load(part, tmp_path)
    assert len(samples) == 49 + 12 + 24
    begin = 0
    for epochs, count in ((4, 49), (1, 12), (2, 24)):
        trained = np.zeros((4, 21), int)
        for number in range(begin, begin + count):
            tokens = [(span.sequence, span.start + place) for span in samples.spans(number) for place in range(span.length)]
            for sequence, place in tokens[:-1]:
                trained[sequence, place] += 1
        assert trained.sum() == 4 * count
        assert trained.max() == epochs
        # Only the tokens after the last whole sample are missing, fewer than a sample and its label.
        assert 0 <= epochs * 50 - trained.sum() <= 4
        begin += count
    with pytest.raises(IndexError):
        samples.spans(begin)


def test_a_longer_run_of_megatron_would_repeat_and_skip(tmp_path: Path) -> None:
    """The reason for sections: with its order of 75 samples, the first 40 are others than those that a run of 40 has trained."""
    (source,) = sources(tmp_path, [[8, 12, 9, 21]])
    short, longer = (spans(load(part_of([source], count, 4, 3), tmp_path), 40) for count in (40, 75))
    assert short != longer


def test_more_samples_of_the_same_epochs_need_no_section(tmp_path: Path) -> None:
    (source,) = sources(tmp_path, [[8, 12, 9, 21]])
    part, longer = (part_of([source], samples, 4, 3) for samples in (40, (40, 49)))
    assert (part.order, part.name()) == (longer.order, longer.name())
