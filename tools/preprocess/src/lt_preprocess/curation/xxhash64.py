"""XXH64 with seed 0, compiled: the hash that datatrove takes of word n-grams, so that both tools have equal signatures."""

import numpy as np

from lt_preprocess.compiler.intrinsics import load8, load32, load64
from lt_preprocess.compiler.jit import inner

_PRIME1 = np.uint64(0x9E3779B185EBCA87)
_PRIME2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME3 = np.uint64(0x165667B19E3779F9)
_PRIME4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME5 = np.uint64(0x27D4EB2F165667C5)
_ZERO = np.uint64(0)


@inner
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@inner
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotated(lane + word * _PRIME2, 31) * _PRIME1


@inner
def _merged(hashed: np.uint64, lane: np.uint64) -> np.uint64:
    return (hashed ^ _round(_ZERO, lane)) * _PRIME1 + _PRIME4


@inner
def xxhash64(at: int, size: int) -> np.uint64:
    """Hash the `size` bytes at address `at`."""
    end = at + size
    if size >= 32:
        first, second, third, fourth = _PRIME1 + _PRIME2, _PRIME2, _ZERO, _ZERO - _PRIME1
        while at + 32 <= end:
            first = _round(first, load64(at))
            second = _round(second, load64(at + 8))
            third = _round(third, load64(at + 16))
            fourth = _round(fourth, load64(at + 24))
            at += 32
        hashed = _rotated(first, 1) + _rotated(second, 7) + _rotated(third, 12) + _rotated(fourth, 18)
        hashed = _merged(_merged(_merged(_merged(hashed, first), second), third), fourth)
    else:
        hashed = _PRIME5
    hashed += np.uint64(size)
    while at + 8 <= end:
        hashed = _rotated(hashed ^ _round(_ZERO, load64(at)), 27) * _PRIME1 + _PRIME4
        at += 8
    if at + 4 <= end:
        hashed = _rotated(hashed ^ np.uint64(load32(at)) * _PRIME1, 23) * _PRIME2 + _PRIME3
        at += 4
    while at < end:
        hashed = _rotated(hashed ^ np.uint64(load8(at)) * _PRIME5, 11) * _PRIME1
        at += 1
    hashed = (hashed ^ hashed >> np.uint64(33)) * _PRIME2
    hashed = (hashed ^ hashed >> np.uint64(29)) * _PRIME3
    return hashed ^ hashed >> np.uint64(32)
