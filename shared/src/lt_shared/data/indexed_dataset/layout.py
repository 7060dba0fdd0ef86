"""The bytes of `.bin` and `.idx`, as the description in this package has them: constants and names."""

import struct

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
UINT16_VOCABULARY_LIMIT = 65500


def dtype_for(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """Megatron's choice: uint16 below 65,500 entries, int32 from there."""
    return np.dtype(np.uint16) if vocab_size < UINT16_VOCABULARY_LIMIT else np.dtype(np.int32)


def bin_path(prefix: str) -> str:
    return f"{prefix}.bin"


def idx_path(prefix: str) -> str:
    return f"{prefix}.idx"
