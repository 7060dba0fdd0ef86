"""Samples of phases, against streams of tokens that are put together and cut by hand."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.sample_order.parts import Source
from lt_shared.sample_order.phases import Phase, PhasedSamples, phased
from lt_shared.sample_order.samples import Tokens


class Numbered:
    """Sequences whose every token is its own, counted through the dataset."""

    def __init__(self, lengths: list[int]):
        self.lengths = np.array(lengths, np.int32)
        self.begins = np.cumsum([0, *lengths])

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        found = [np.arange(self.begins[number], self.begins[number + 1]) for number in numbers.tolist()]
        found[-1] = found[-1][:end]
        found[0] = found[0][start:]
        return np.concatenate(found)


def build(datasets: list[Numbered], phases: list[Phase], seed: int, place: Path) -> PhasedSamples:
    sources = [Source("", each, range(len(each.lengths))) for each in datasets]
    part = phased(sources, phases, seed)
    found = {}
    for number, index in enumerate(part.indices):
        found[index] = place / str(number)
        found[index].mkdir(parents=True)
        index.make(found[index])
    return part.load(found)


def stream(dataset: Numbered, seed: int, tokens: int) -> np.ndarray:
    """The first `tokens` tokens of the epochs, one after the other."""
    parts, epoch = [], 0
    while sum(map(len, parts)) < tokens:
        order = np.arange(len(dataset.lengths))
        np.random.RandomState([seed, epoch]).shuffle(order)
        parts += [np.arange(dataset.begins[number], dataset.begins[number + 1]) for number in order]
        epoch += 1
    return np.concatenate(parts)[:tokens]


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)
WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5]), min_size=3, max_size=3).filter(any).map(tuple)
PHASES = st.lists(st.builds(Phase, st.integers(1, 12), st.integers(1, 6), WEIGHTS), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=3, max_size=3), PHASES, st.integers(0, 2**32 - 1))
def test_each_dataset_is_read_on_where_the_phase_before_ended(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], phases: list[Phase], seed: int
) -> None:
    datasets = [Numbered(each) for each in lengths]
    samples = build(datasets, phases, seed, tmp_path_factory.mktemp("phases"))
    assert len(samples) == sum(phase.samples for phase in phases)
    first, begins = 0, [0, 0, 0]
    for phase in phases:
        numbers = range(first, first + phase.samples)
        drawn = [samples.dataset(number) for number in numbers]
        for index, dataset in enumerate(datasets):
            share = phase.samples * phase.weights[index] / sum(phase.weights)
            room = phase.samples if sum(map(bool, phase.weights)) == 1 else int(np.ceil(share - 1e-9)) + 2
            own = [number for number, each in zip(numbers, drawn, strict=True) if each == index]
            if not phase.weights[index]:
                assert not own
                continue
            assert len(own) <= share + 1 + 1e-9
            whole = stream(dataset, seed, begins[index] + (room + 1) * phase.sequence_length + 2)
            size = phase.sequence_length
            cut = [tuple(whole[begin : begin + size + 1]) for begin in range(begins[index], begins[index] + room * size, size)]
            read = [tuple(samples[number]) for number in own]
            assert all(cut.count(sample) >= read.count(sample) for sample in read)
            for number in own:
                spans = samples.spans(number)
                assert {span.dataset for span in spans} == {index}
                from_spans = [dataset.begins[span.sequence] + span.start + np.arange(span.length) for span in spans]
                assert tuple(np.concatenate(from_spans)) == tuple(samples[number])
            begins[index] += room * size
        first += phase.samples


@settings(max_examples=20, deadline=None)
@given(st.lists(LENGTHS, min_size=3, max_size=3), PHASES, PHASES)
def test_later_phases_change_nothing_before_them(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], phases: list[Phase], more: list[Phase]
) -> None:
    place = tmp_path_factory.mktemp("phases")
    datasets = [Numbered(each) for each in lengths]
    short, long = build(datasets, phases, 7, place / "short"), build(datasets, [*phases, *more], 7, place / "long")
    for number in range(len(short)):
        np.testing.assert_array_equal(short[number], long[number])


def test_the_samples_of_a_phase_are_shuffled(tmp_path: Path) -> None:
    samples = build([Numbered([4] * 50)], [Phase(40, 4, (1.0,)), Phase(9, 4, (1.0,))], 7, tmp_path)
    assert [int(samples[number][0]) for number in range(40)] != sorted(int(samples[number][0]) for number in range(40))
    seen = [token for number in range(40) for token in samples[number][:-1].tolist()]
    assert len(set(seen)) == 160
    assert not set(seen) & {token for number in range(40, 49) for token in samples[number][:-1].tolist()}
    with pytest.raises(IndexError):
        samples[49]
