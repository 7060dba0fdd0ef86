"""A tensor as the archive that `torch.save` makes of it, without a copy of its bytes.

torch is told to compute no checksums and to write into a recorder: the bytes before the tensor's, the tensor's own memory, and
the bytes behind it. The bytes before and behind depend on the tensor's dtype and shape alone.
"""

import threading
from typing import Any

import numpy as np
import torch

from lt_train.checkpoint.shards.archives import Archive, Frame, framed

# Whether torch computes checksums is the process's own option.
_option = threading.Lock()
_frames: dict[tuple[torch.dtype, torch.Size], Frame] = {}


class _Recorder:
    """What torch writes an archive to: remembers what comes before and behind the memory that begins at `address`."""

    def __init__(self, address: int, size_bytes: int):
        self.address, self.size_bytes = address, size_bytes
        self.head, self.tail = bytearray(), bytearray()
        self.has_data = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        is_data = view.nbytes == self.size_bytes > 0 and np.frombuffer(view, np.uint8).ctypes.data == self.address
        if is_data and not self.has_data:
            self.has_data = True
        else:
            (self.tail if self.has_data else self.head).extend(view)
        return view.nbytes

    def flush(self) -> None:
        """torch calls it at the end."""


def archive(tensor: torch.Tensor) -> Archive:
    """The archive of a tensor on the CPU, alone: also where it is a part of a larger storage."""
    return framed(frame(tensor), _bytes_of(tensor).data)


def frame(tensor: torch.Tensor) -> Frame:
    """What surrounds the bytes of a tensor on the CPU in its archive; made once for each dtype and shape."""
    if not tensor.numel():
        return _recorded(tensor.detach().clone())
    key = tensor.dtype, tensor.shape
    if key not in _frames:
        # torch does not look at the bytes, so these pages take no memory.
        _frames[key] = _recorded(torch.empty(tensor.shape, dtype=tensor.dtype))
    return _frames[key]


def _recorded(tensor: torch.Tensor) -> Frame:
    recorder = _Recorder(tensor.data_ptr(), tensor.nbytes)
    with _option:
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(tensor, recorder)  # type: ignore[arg-type]
        finally:
            torch.serialization.set_crc32_options(before)
    assert recorder.has_data or not tensor.nbytes, "torch writes a copy of the tensor's bytes"
    return Frame(bytes(recorder.head), bytes(recorder.tail))


def _bytes_of(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Its memory; numpy knows no bfloat16."""
    flat = tensor.detach().contiguous().view(-1)
    array: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return array
