"""Byte-level BPE without compiled code: 1 or 2 MB a second, by any split pattern that split_regex cuts text by.

It encodes if a pattern is not compiled, and the compiled encoder is checked against it if no library reads the files. It merges
by the definition: the lowest rank first, and the leftmost pair among equal ranks.
"""

import heapq

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers import split_patterns, split_regex
from lt_preprocess.tokenizers.base import Encoder, Ids
from lt_preprocess.tokenizers.vocabulary import Vocabulary

_CACHED_PIECES = 1 << 20


class UncompiledEncoder(Encoder):
    def __init__(self, vocabulary: Vocabulary):
        patterns = vocabulary.regex or split_patterns.spelling(vocabulary.pattern)
        self._cut = split_regex.splitter([patterns] if isinstance(patterns, str) else patterns)
        self._byte_ids = vocabulary.byte_ids.tolist()
        self._whole_pieces = vocabulary.whole_pieces
        rows = vocabulary.merge_rows.tolist()
        self._merges = {(left, right): (rank, merged) for left, right, rank, merged in rows}
        self._known: dict[str, list[int]] = {}

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        ids: list[int] = []
        lengths = []
        for text in texts.to_list():
            before = len(ids)
            for piece in self._cut(text.decode()):
                word_ids = self._known.get(piece)
                if word_ids is None:
                    word_ids = self.word_ids(piece.encode())
                    if len(self._known) < _CACHED_PIECES:
                        self._known[piece] = word_ids
                ids.extend(word_ids)
            lengths.append(len(ids) - before)
        return np.array(ids, np.int32), np.array(lengths, np.int64)

    def word_ids(self, piece: bytes) -> list[int]:
        """Encode one piece that the pattern cut out."""
        whole = self._whole_pieces.get(piece)
        return self._merged([self._byte_ids[byte] for byte in piece]) if whole is None else [whole]

    def _merged(self, ids: list[int]) -> list[int]:
        """Merge `ids`. `after` and `before` link the remaining ids. A heap entry is stale if its two ids have changed since."""
        size = len(ids)
        after, before = list(range(1, size + 1)), list(range(-1, size - 1))
        heap: list[tuple[int, int, int, int, int]] = []

        def push(index: int) -> None:
            if index >= 0 and after[index] < size:
                pair = ids[index], ids[after[index]]
                merge = self._merges.get(pair)
                if merge is not None:
                    heapq.heappush(heap, (merge[0], index, *pair, merge[1]))

        for index in range(size - 1):
            push(index)
        while heap:
            _, index, left, right, merged = heapq.heappop(heap)
            following = after[index]
            if ids[index] != left or following >= size or ids[following] != right:
                continue
            ids[index], ids[following] = merged, -1
            after[index] = after[following]
            if after[index] < size:
                before[after[index]] = index
            push(before[index])
            push(index)
        return [number for number in ids if number >= 0]
