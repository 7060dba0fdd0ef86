"""Samples of phases, against streams of tokens that are put together and cut by hand."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.data.sample_order.parts import Source, StreamSource
from lt_shared.data.sample_order.phases import Phase, PhasedSamples, phased
from lt_shared.data.sample_order.samples import Tokens
from lt_shared.data.sample_order.stream import Shard, Stream


class Numbered:
    """Sequences whose every token is its own, counted through the dataset."""

    def __init__(self, lengths: list[int], first_token: int = 0):
        self.lengths = np.array(lengths, np.int32)
        self.begins = np.cumsum([first_token, *lengths])

    def read(self, numbers: Tokens, start: int, end: int) -> Tokens:
        found = [np.arange(self.begins[number], self.begins[number + 1]) for number in numbers.tolist()]
        found[-1] = found[-1][:end]
        found[0] = found[0][start:]
        return np.concatenate(found)


def build(datasets: list[Numbered | Stream], phases: list[Phase], seed: int, place: Path) -> PhasedSamples:
    sources = [
        StreamSource(each) if isinstance(each, Stream) else Source("", each, range(len(each.lengths))) for each in datasets
    ]
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


@settings(max_examples=30, deadline=None)
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


@settings(max_examples=25, deadline=None)
@given(LENGTHS, st.lists(LENGTHS, min_size=1, max_size=3), PHASES)
def test_a_stream_is_read_on_where_the_phase_before_ended(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shards: list[list[int]], phases: list[Phase]
) -> None:
    """Of a blend of two: samples of each phase are cut from its own stretch, no two at the same place."""
    phases = [dataclasses.replace(phase, weights=(phase.weights[0], phase.weights[1] or 1.0)) for phase in phases]
    stream = Stream(7, 12)
    samples = build([Numbered(lengths), stream], phases, 7, tmp_path_factory.mktemp("phases"))
    for number, each in enumerate(shards):
        stream.add(Shard(Numbered(each, 1000 * number), range(len(each))))
    stream.finish()
    first = begin = 0
    for phase in phases:
        share = phase.samples * phase.weights[1] / sum(phase.weights)
        room = int(np.ceil(share - 1e-9)) + 2 if phase.weights[0] else phase.samples
        size = phase.sequence_length
        pieces = stream.pieces(begin, begin + room * size + 1)
        line = np.concatenate([stream.shards[shard].sequences.read(numbers, *ends) for shard, numbers, *ends in pieces]).tolist()
        cut = [tuple(line[place : place + size + 1]) for place in range(0, room * size, size)]
        own = [number for number in range(first, first + phase.samples) if samples.dataset(number) == 1]
        read = [tuple(samples[number].tolist()) for number in own]
        assert all(cut.count(sample) >= read.count(sample) for sample in read)
        begin, first = begin + room * size, first + phase.samples


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
