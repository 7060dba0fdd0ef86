"""The tokens of sample `i` of a stream: a pure function of the seed, the ordered shards, and the shuffle window.

The shards are read window by window: a window ends with the shard that brings it to `window_tokens` or more, so its borders
depend on the shards alone. Within a window the sequences are shuffled, and then joined to the tokens of earlier windows. The
tokens are cut into samples of sequence_length + 1 tokens; two neighbours share one token. A sample belongs to the window that has
its last token, so no tail of a window is lost; samples are shuffled within their window.

After the last window, a new epoch reads and shuffles all windows again. Later shards do not change earlier samples, so a run that
starts with the first shard and a run that reads the complete list see the same samples. The price is the mixing: samples of
different windows never change places. Memory is 16 bytes per sequence and 8 per sample of three windows.

The tokens of the stream (`Stream`) do not depend on the sample length. Each phase of a run cuts samples with its sample length
from the token at which the previous phase ended (`StreamSamples`). If a phase ends within a window, its samples are shuffled
without the samples of the next phase.
"""

import bisect
import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lt_shared.data.sample_order.samples import Sequences, Span, Tokens

NUMBER_BITS = 40
NUMBER_MASK = (1 << NUMBER_BITS) - 1
# A sample may begin in the window before, and read-ahead is a window ahead.
KEPT_LAYOUTS = 3

Found = TypeVar("Found")


class Shard(NamedTuple):
    """The `share` of a shard's sequences that is read."""

    sequences: Sequences
    share: range


class Visit(NamedTuple):
    """One reading of a window: it has the tokens from `start` to before `end` of the stream, all epochs counted."""

    epoch: int
    window: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class _Layout:
    """`order` int64 [S]: the shard's number and, in the lower bits, the sequence's; `ends` [S]: cumulative tokens.

    `drawn` is the random state after the shuffle of the sequences; the shuffle of the samples continues from it.
    """

    order: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    drawn: Any


class Windows:
    """The windows of one epoch whose shards have arrived."""

    def __init__(self, window_tokens: int = 1):
        self.window_tokens = window_tokens
        self.first_shards = [0]
        """The first shard of each window; the last entry belongs to the open window."""
        self.ends: list[int] = []
        """Tokens up to the end of each closed window."""
        self.is_finished = False
        self._shards = self._tokens = 0

    def add(self, tokens: int) -> None:
        """A shard with `tokens` tokens follows."""
        self._shards += 1
        self._tokens += tokens
        if self._tokens - (self.ends[-1] if self.ends else 0) >= self.window_tokens:
            self._close()

    def finish(self) -> None:
        """No shard follows."""
        if self.first_shards[-1] < self._shards:
            self._close()
        self.is_finished = True

    def _close(self) -> None:
        # Another thread may look between the two: what `ends` has is complete.
        self.first_shards.append(self._shards)
        self.ends.append(self._tokens)

    def visit_with(self, token: int) -> Visit | None:
        """The visit that has this token of the stream; None when it is not known yet."""
        epoch_tokens = self.ends[-1] if self.ends else 0
        epoch, token_of_epoch = divmod(token, epoch_tokens) if self.is_finished and epoch_tokens else (0, token)
        window = bisect.bisect_right(self.ends, token_of_epoch)
        if window == len(self.ends):
            return None
        before = epoch * epoch_tokens
        return Visit(epoch, window, before + (self.ends[window - 1] if window else 0), before + self.ends[window])


class _Newest(Generic[Found]):
    """Cache the results for the newest visits. Readers in several threads share it."""

    def __init__(self, make: Callable[[Visit], Found]):
        self._make = make
        self._found: collections.OrderedDict[tuple[int, int], Found] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, visit: Visit) -> Found:
        key = (visit.epoch, visit.window)
        with self._lock:
            if key not in self._found:
                self._found[key] = self._make(visit)
            self._found.move_to_end(key)
            while len(self._found) > KEPT_LAYOUTS:
                self._found.popitem(last=False)
            return self._found[key]


class Stream:
    """The tokens of a stream whose shards arrive one after the other, from one thread; others may read meanwhile."""

    def __init__(self, seed: int, window_tokens: int = 1):
        self.seed = seed
        self.windows = Windows(window_tokens)
        self.shards: list[Shard] = []
        self.layout = _Newest(self._laid_out)

    def add(self, shard: Shard) -> None:
        """Append the next shard of the stream."""
        self.shards.append(shard)
        self.windows.add(int(_lengths(shard).sum()))

    def finish(self) -> None:
        """Declare the shard that was added last the end of the stream."""
        self.windows.finish()

    def pieces(self, token: int, end: int) -> list[tuple[int, npt.NDArray[np.int64], int, int]]:
        """Tokens `token` to before `end` as arguments of `Sequences.read`, each after the number of its shard."""
        pieces: list[tuple[int, npt.NDArray[np.int64], int, int]] = []
        while token < end:
            visit = self.windows.visit_with(token)
            assert visit is not None
            pieces += self._pieces_of(visit, token, min(end, visit.end))
            token = visit.end
        return pieces

    def _pieces_of(self, visit: Visit, token: int, end: int) -> list[tuple[int, npt.NDArray[np.int64], int, int]]:
        """Return `pieces` for tokens within one visit."""
        layout = self.layout(visit)
        first, last = np.searchsorted(layout.ends, (token - visit.start, end - visit.start - 1), side="right").tolist()
        packed = layout.order[first : last + 1]
        shards, numbers = packed >> NUMBER_BITS, packed & NUMBER_MASK
        borders = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(packed)]
        pieces = []
        for begin, stop in itertools.pairwise(borders):
            shard, sequences = int(shards[begin]), numbers[begin:stop]
            start = token - visit.start - (int(layout.ends[first - 1]) if first else 0) if begin == 0 else 0
            length = int(self.shards[shard].sequences.lengths[sequences[-1]])
            unread_tokens = int(layout.ends[last]) - (end - visit.start) if stop == len(packed) else 0
            pieces.append((shard, sequences, start, length - unread_tokens))
        return pieces

    def _laid_out(self, visit: Visit) -> _Layout:
        state = np.random.RandomState([self.seed, visit.epoch, visit.window])
        first, last = self.windows.first_shards[visit.window], self.windows.first_shards[visit.window + 1]
        packed = np.concatenate([_packed(number, self.shards[number]) for number in range(first, last)])
        lengths = np.concatenate([_lengths(shard) for shard in self.shards[first:last]])
        shuffled = np.arange(len(packed))
        state.shuffle(shuffled)
        # Those without tokens would be read for nothing.
        shuffled = shuffled[lengths[shuffled] > 0]
        return _Layout(packed[shuffled], np.cumsum(lengths[shuffled]), state.get_state())


class StreamSamples:
    """Samples of `sequence_length` + 1 tokens from a stream, from token `begin` on.

    `samples` counts the requested samples, whose shards may not have arrived. The next phase begins with sample `end`; with None,
    a longer run begins with the same samples.
    """

    def __init__(self, stream: Stream, sequence_length: int, samples: int, begin: int = 0, end: int | None = None):
        self.stream = stream
        self.sequence_length = sequence_length
        self._samples = samples
        self._begin = begin
        self._end = end
        self._order = _Newest(self._shuffled)

    def __len__(self) -> int:
        return self._samples

    def visit(self, number: int) -> Visit | None:
        """Return the visit that sample `number` belongs to, or None until its shards have arrived."""
        return self.stream.windows.visit_with(self._begin + (number + 1) * self.sequence_length)

    def is_ready(self, end: int) -> bool:
        """Whether all samples up to before number `end` can be read."""
        return end <= 0 or self.visit(end - 1) is not None

    def epoch(self, number: int) -> int:
        """Return the number of complete passes over the stream before sample `number`. The visit of the sample must be known."""
        return self._known(number).epoch

    def __getitem__(self, number: int) -> Tokens:
        shards = self.stream.shards
        pieces = [shards[shard].sequences.read(numbers, start, end) for shard, numbers, start, end in self._pieces(number)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def dataset(self, number: int) -> int:
        return 0

    def spans(self, number: int) -> list[Span]:
        spans = []
        for shard, numbers, start, end in self._pieces(number):
            starts = np.zeros(len(numbers), np.int64)
            starts[0] = start
            ends = self.stream.shards[shard].sequences.lengths[numbers].astype(np.int64)
            ends[-1] = end
            for sequence, first, length in zip(numbers.tolist(), starts.tolist(), (ends - starts).tolist(), strict=True):
                spans.append(Span(0, sequence, first, length, shard))
        return spans

    def _known(self, number: int) -> Visit:
        visit = self.visit(number)
        if visit is None:
            raise LookupError(f"sample {number} of a stream is asked for before its shards are there")
        return visit

    def _pieces(self, number: int) -> list[tuple[int, npt.NDArray[np.int64], int, int]]:
        """Return `Stream.pieces` for sample `number`."""
        visit = self._known(number)
        place = int(self._order(visit)[number - self._first_sample(visit)])
        token = self._begin + place * self.sequence_length
        return self.stream.pieces(token, token + self.sequence_length + 1)

    def _first_sample(self, visit: Visit) -> int:
        return max(0, (visit.start - self._begin - 1) // self.sequence_length)

    def _shuffled(self, visit: Visit) -> npt.NDArray[np.int64]:
        """Return the positions of a visit's samples in the stream, shuffled."""
        end = max(0, (visit.end - self._begin - 1) // self.sequence_length)
        samples = np.arange(self._first_sample(visit), end if self._end is None else min(end, self._end))
        state = np.random.RandomState()
        state.set_state(self.stream.layout(visit).drawn)
        state.shuffle(samples)
        return samples


def _lengths(shard: Shard) -> npt.NDArray[np.int64]:
    # A memory map's own subclass is slow to index.
    return np.asarray(shard.sequences.lengths[shard.share.start : shard.share.stop]).astype(np.int64)


def _packed(number: int, shard: Shard) -> npt.NDArray[np.int64]:
    sequences: npt.NDArray[Any] = np.arange(shard.share.start, shard.share.stop, dtype=np.int64)
    return sequences | np.int64(number << NUMBER_BITS)
