"""Find the lines of a block that contain one of about nine hundred keywords; only these lines are parsed.

Most of a log is noise, so this is the inner loop of lt-monitor. A keyword of at least seven bytes, wherever it lies in a block,
covers one whole group of four bytes that begins at a multiple of four. So only every fourth offset is examined: NumPy hashes its
four bytes into a table of 262,144 flags, many groups at once. For a group that passes, a second table checks the seven bytes
around each of the four positions that the group can have in a keyword's window. Python compares the remaining offsets with the
keywords. One core reads 1 to 2 GB/s. One `bytes.find` per keyword would read 10 MB/s and one compiled alternation 200 MB/s; both
find exactly the same lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

WINDOW_BYTES = 7
GROUP_BYTES = 4
HASH_BITS = 18
# So many groups and their hashes stay in a core's cache.
GROUPS = 1 << 17
# Up to so many candidates, comparing in Python is faster than checking the windows in NumPy first.
FEW_CANDIDATES = 64

_MULTIPLIER = np.uint32(2654435761)
_WINDOW_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# The window of a keyword is chosen for its rare bytes, because a group of frequent bytes lets more lines through.
_FREQUENT = b" etaoinsrhldcum0123456789._-:/"
_WEIGHTS = bytes(len(_FREQUENT) - _FREQUENT.index(byte) if byte in _FREQUENT else 0 for byte in range(256))
# More than the weights of a group's bytes together, and more than a group's costs.
_PER_COUNT, _IN_NOISE = 1000, 10**9
_NOISE = (
    b"NCCL INFO Channel 00/32 : 0[0] -> 1[1] via P2P/IPC/read NET/OFI Using transport protocol Connected all rings trees comm 0x"
    b"UserWarning: warnings.warn( FutureWarning: Please use torch.distributed DeprecationWarning: with process group will be set "
    b"/usr/local/lib/python3.12/dist-packages/ [INFO] [WARNING] - INFO - root - DEBUG - building loading wandb: Tracking run "
    b"2026-01-16 07:32:24,123 2025-03-04T00:44:44 [rank0]: [default0]: Running initialize initialized init_process_group device "
    b"> building train, validation, and test datasets for GPT ... iteration configuration optimizer parameters of the learning "
    b"worker 3 handled request GET /health HTTP/1.1 200 OK, queue and handler enabled, called, scheduled and handed over in 3 ms "
    b"found 12 files on each node, reading file, memory usage 3 GB, memory of all steps, epochs start, work started, unchanged "
    b"shard 3 of 10 with 10000 documents and 30000 tokens, cache size 12 and depth 4, added to the index, saved to disk, 0000 "
    b"this process will create 4 worker processes, version 0.19.1, one domain per process, access granted, messages with status "
    b"from that this there which could number not available module object is not self, torch.nn. return import File line in "
)

Meaning = TypeVar("Meaning")


class Prefilter(Generic[Meaning]):
    """Finds keywords and yields the caller's meaning of each. Raises ValueError for a keyword shorter than WINDOW_BYTES."""

    def __init__(self, keywords: Mapping[bytes, Meaning]):
        self._groups: dict[bytes, list[tuple[bytes, int, Meaning]]] = {}
        if short := [keyword for keyword in keywords if len(keyword) < WINDOW_BYTES]:
            raise ValueError(f"{short[0]!r} is shorter than {WINDOW_BYTES} bytes")
        windows = []
        for (keyword, meaning), start in zip(keywords.items(), _rarest_windows(list(keywords)), strict=True):
            windows.append(keyword[start : start + WINDOW_BYTES] + b"\0")
            for shift in range(start, start + WINDOW_BYTES - GROUP_BYTES + 1):
                self._groups.setdefault(keyword[shift : shift + GROUP_BYTES], []).append((keyword, shift, meaning))
        self._flags = np.zeros(1 << HASH_BITS, dtype=bool)
        self._flags[_hashes(np.frombuffer(b"".join(self._groups), dtype="<u4"))] = True
        self._window_flags = np.zeros(1 << HASH_BITS, dtype=bool)
        self._window_flags[_window_hashes(np.frombuffer(b"".join(windows), dtype="<u8"))] = True

    def candidates(self, block: bytes) -> np.ndarray:
        """Return offsets (int64, ascending) in `block` that may lie inside a keyword."""
        groups = np.frombuffer(block, dtype="<u4", count=len(block) // GROUP_BYTES)
        index_chunks = [
            np.flatnonzero(np.take(self._flags, _hashes(groups[begin : begin + GROUPS]), mode="clip")) + begin
            for begin in range(0, len(groups), GROUPS)
        ]
        if not index_chunks:
            return np.empty(0, np.int64)
        indexes = np.concatenate(index_chunks)
        return (self._in_windows(groups, indexes) if len(indexes) > FEW_CANDIDATES else indexes) * GROUP_BYTES

    def _in_windows(self, groups: np.ndarray, indexes: np.ndarray) -> np.ndarray:
        """Keep the groups that lie in a keyword's window, and the outermost groups, which lack a neighbour in the block."""
        first, last = np.searchsorted(indexes, (1, len(groups) - 1))
        inner = indexes[first:last]
        before, here, behind = (groups[inner + shift].astype(np.uint64) for shift in (-1, 0, 1))
        ending, beginning = before | here << np.uint64(32), here | behind << np.uint64(32)
        is_in = self._is_window(beginning) | self._is_window(ending >> np.uint64(8))
        is_in |= self._is_window(ending >> np.uint64(24) | behind << np.uint64(40))
        is_in |= self._is_window(ending >> np.uint64(16) | behind << np.uint64(48))
        return np.concatenate([indexes[:first], inner[is_in], indexes[last:]])

    def _is_window(self, bytes_8: np.ndarray) -> np.ndarray:
        """Whether the first seven of the eight bytes may be a keyword's window."""
        return np.take(self._window_flags, _window_hashes(bytes_8), mode="clip")

    def confirmed(self, block: bytes, candidates: Iterable[int]) -> Iterator[tuple[int, Meaning]]:
        """Yield the candidates that lie in a keyword, with the keyword's meaning."""
        groups = self._groups
        for offset in candidates:
            for keyword, shift, meaning in groups.get(block[offset : offset + GROUP_BYTES], ()):
                if offset >= shift and block.startswith(keyword, offset - shift):
                    yield offset, meaning


def _hashes(groups: np.ndarray) -> np.ndarray:
    return (groups * _MULTIPLIER) >> np.uint32(32 - HASH_BITS)


def _window_hashes(bytes_8: np.ndarray) -> np.ndarray:
    """Hash the first seven bytes; the shift drops the eighth."""
    hashes = ((bytes_8 << np.uint64(8)) * _WINDOW_MULTIPLIER) >> np.uint64(64 - HASH_BITS)
    # NumPy 1 does not accept uint64 indexes.
    return hashes.view(np.int64)


def _rarest_windows(keywords: Sequence[bytes]) -> list[int]:
    """Return the offset of each keyword's rarest window: not in _NOISE if possible, and with the rarest commonest group.

    How common a group is, is estimated mainly from its count in _NOISE, then from its bytes.
    """
    text = b"".join(keywords)
    weights = np.frombuffer(text.translate(_WEIGHTS), np.uint8).astype(np.int64)
    noise_groups = np.sort(_pieces(_NOISE, GROUP_BYTES))
    groups = _pieces(text, GROUP_BYTES)
    counts = np.searchsorted(noise_groups, groups, side="right") - np.searchsorted(noise_groups, groups)
    group_costs = counts * _PER_COUNT + sum(weights[shift : len(groups) + shift] for shift in range(GROUP_BYTES))
    count = len(text) - WINDOW_BYTES + 1
    costs = group_costs[:count]
    for shift in range(1, WINDOW_BYTES - GROUP_BYTES + 1):
        costs = np.maximum(costs, group_costs[shift : count + shift])
    costs += np.isin(_pieces(text, WINDOW_BYTES), _pieces(_NOISE, WINDOW_BYTES)) * _IN_NOISE
    cost_list, begin, windows = costs.tolist(), 0, []
    for keyword in keywords:
        keyword_costs = cost_list[begin : begin + len(keyword) - WINDOW_BYTES + 1]
        windows.append(keyword_costs.index(min(keyword_costs)))
        begin += len(keyword)
    return windows


def _pieces(text: bytes, size: int) -> np.ndarray:
    """Return every `size` consecutive bytes of a text as one number (uint64)."""
    cells = np.frombuffer(text, np.uint8).astype(np.uint64)
    count = len(cells) - size + 1
    pieces = cells[:count]
    for shift in range(1, size):
        pieces = pieces | cells[shift : count + shift] << np.uint64(8 * shift)
    return np.asarray(pieces)
