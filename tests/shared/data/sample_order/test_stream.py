"""The order of a stream's samples: what it depends on, and what it leaves out and repeats."""

import collections
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_shared.data.sample_order.stream import Shard, Stream, StreamSamples

# Of a token: the shard, the sequence and the place in it.
SHARD, SEQUENCE = 10**8, 10**4


class Counting:
    """Sequences whose tokens say where they are."""

    def __init__(self, number: int, lengths: list[int]):
        self.lengths = np.array(lengths, np.int32)
        self.number = number

    def read(self, numbers: Any, start: int, end: int) -> Any:
        found = [self.number * SHARD + int(n) * SEQUENCE + np.arange(self.lengths[n]) for n in numbers]
        found[-1] = found[-1][:end]
        found[0] = found[0][start:]
        return np.concatenate(found)


lists = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=6).filter(lambda found: any(map(any, found)))


def shards_of(lengths: list[list[int]]) -> list[Shard]:
    return [Shard(Counting(number, of_shard), range(len(of_shard))) for number, of_shard in enumerate(lengths)]


def read_at_once(lengths: list[list[int]], samples: int, sequence_length: int, window: int, seed: int = 7) -> list[list[int]]:
    found = StreamSamples(whole(lengths, window, seed), sequence_length, samples)
    return [found[number].tolist() for number in range(samples)]


def whole(lengths: list[list[int]], window: int, seed: int = 7) -> Stream:
    stream = Stream(seed, window)
    for shard in shards_of(lengths):
        stream.add(shard)
    stream.finish()
    return stream


@given(lengths=lists, sequence_length=st.integers(1, 60), window=st.sampled_from([1, 40, 100, 10**6]))
@settings(max_examples=40, deadline=None)
def test_the_order_does_not_depend_on_when_shards_arrive(lengths: list[list[int]], sequence_length: int, window: int) -> None:
    stream = Stream(7, window)
    samples = StreamSamples(stream, sequence_length, 10**6)
    found: list[list[int]] = []
    epochs = 2 * sum(map(sum, lengths)) // sequence_length
    for shard in [*shards_of(lengths), None]:
        if shard is None:
            stream.finish()
        else:
            stream.add(shard)
        while len(found) < epochs and samples.is_ready(len(found) + 1):
            found.append(samples[len(found)].tolist())
    assert len(found) == epochs
    assert found == read_at_once(lengths, epochs, sequence_length, window)
    # Not in the order in which they are asked for, either.
    again = StreamSamples(whole(lengths, window), sequence_length, epochs)
    assert [again[number].tolist() for number in reversed(range(epochs))] == found[::-1]


@given(lengths=lists, sequence_length=st.integers(1, 60), window=st.sampled_from([1, 40, 10**6]))
@settings(max_examples=40, deadline=None)
def test_an_epoch_has_every_token_once(lengths: list[list[int]], sequence_length: int, window: int) -> None:
    """But for the tail after the last whole sample, which the next epoch goes on with."""
    tokens = sum(map(sum, lengths))
    in_one = (tokens - 1) // sequence_length
    samples = read_at_once(lengths, in_one, sequence_length, window)
    assert all(len(sample) == sequence_length + 1 for sample in samples)
    counts = collections.Counter(token for sample in samples for token in sample[:-1])
    assert sum(counts.values()) == in_one * sequence_length
    assert all(count == 1 for count in counts.values())
    three = read_at_once(lengths, (3 * tokens - 1) // sequence_length, sequence_length, window)
    repeated = collections.Counter(token for sample in three for token in sample[:-1])
    assert max(repeated.values(), default=0) <= 3
    assert sum(repeated.values()) == (3 * tokens - 1) // sequence_length * sequence_length


def test_samples_stay_within_their_windows_and_move_there() -> None:
    lengths = [[10] * 50 for _ in range(8)]
    samples = read_at_once(lengths, 399, 10, 1000)
    places = [max(token // SHARD for token in sample) for sample in samples]
    # Two shards are a window: 1000 tokens, 100 samples.
    for window in range(4):
        of_window = set(places[100 * window : 100 * window + 99])
        assert of_window <= {2 * window, 2 * window + 1, 2 * window - 1}
    assert sorted(samples) != samples
    assert samples != read_at_once(lengths, 399, 10, 1000, seed=8)
    epochs = read_at_once(lengths, 798, 10, 1000)
    assert epochs[:399] == samples
    assert [sample[0] for sample in epochs[399:]] != [sample[0] for sample in samples]


@given(lengths=lists, sequence_length=st.integers(1, 60), window=st.sampled_from([1, 40, 10**6]))
@settings(max_examples=30, deadline=None)
def test_spans_are_where_the_tokens_are(lengths: list[list[int]], sequence_length: int, window: int) -> None:
    stream = StreamSamples(whole(lengths, window), sequence_length, 2 * sum(map(sum, lengths)) // sequence_length)
    for number in range(len(stream)):
        told = [
            span.shard * SHARD + span.sequence * SEQUENCE + place
            for span in stream.spans(number)
            for place in range(span.start, span.start + span.length)
        ]
        assert told == stream[number].tolist()


def test_a_share_of_the_first_shard_is_left_out() -> None:
    stream = Stream(7)
    stream.add(Shard(Counting(0, [10] * 10), range(3)))
    stream.add(Shard(Counting(1, [10] * 2), range(2)))
    stream.finish()
    samples = StreamSamples(stream, 5, 100)
    tokens = {token for number in range(30) for token in samples[number].tolist()}
    assert {token // SEQUENCE for token in tokens} == {0, 1, 2, SHARD // SEQUENCE, SHARD // SEQUENCE + 1}


def test_what_is_not_there_is_not_read() -> None:
    stream = Stream(7)
    samples = StreamSamples(stream, 5, 100)
    stream.add(Shard(Counting(0, [10]), range(1)))
    assert samples.is_ready(1)
    # The tenth token is the last of the second sample only with the first of the next shard.
    assert not samples.is_ready(2)
    with pytest.raises(LookupError):
        samples[1]
    stream.add(Shard(Counting(1, [10]), range(1)))
    assert samples.is_ready(3)
    stream.finish()
    assert (samples.epoch(0), samples.epoch(3), samples.epoch(4)) == (0, 1, 1)


@given(lengths=lists, sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 15)), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_phases_of_a_stream_go_on_where_the_one_before_has_ended(lengths: list[list[int]], sizes: list[tuple[int, int]]) -> None:
    """Each token of the stream is in one phase; `sizes` are the sequence length and the samples of each."""
    total = sum(length * samples for length, samples in sizes)
    stream = whole(lengths, 40)
    line = [shard * SHARD + n * SEQUENCE + place for shard, n, place in places(stream, total + 1)]
    begin = 0
    for length, count in sizes:
        samples = StreamSamples(stream, length, count, begin, count)
        found = [samples[number].tolist() for number in range(count)]
        expected = [line[token : token + length + 1] for token in range(begin, begin + count * length, length)]
        assert sorted(found) == sorted(expected)
        begin += count * length


def places(stream: Stream, tokens: int) -> list[tuple[int, int, int]]:
    return [
        (shard, int(n), place)
        for shard, numbers, start, end in stream.pieces(0, tokens)
        for index, n in enumerate(numbers)
        for place in range(
            start if index == 0 else 0,
            end if index == len(numbers) - 1 else int(stream.shards[shard].sequences.lengths[n]),
        )
    ]
