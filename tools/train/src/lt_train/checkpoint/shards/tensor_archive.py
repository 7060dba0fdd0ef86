"""Make the archive that `torch.save` makes from a tensor, without a copy of the tensor's bytes.

torch computes no checksums and writes into a recorder, which keeps the bytes before and behind the tensor's memory. These bytes
depend on the tensor's dtype and shape only.
"""

import threading
from typing import Any

import numpy as np
import torch

from lt_train.checkpoint.shards.archives import Archive, Frame, frame_tensor

# Held while torch's option to compute checksums is changed, because the option belongs to the whole process.
_option = threading.Lock()
_frames: dict[tuple[torch.dtype, torch.Size], Frame] = {}


class _Recorder:
    """A file for torch that keeps the bytes before and behind the memory at `address`."""

    def __init__(self, address: int, size_bytes: int):
        self.address, self.size_bytes = address, size_bytes
        self.head, self.tail = bytearray(), bytearray()
        self.has_data = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        # torch passes the tensor's memory itself, so the address tells it from the archive's headers.
        is_data = view.nbytes == self.size_bytes > 0 and np.frombuffer(view, np.uint8).ctypes.data == self.address
        if is_data and not self.has_data:
            self.has_data = True
        else:
            (self.tail if self.has_data else self.head).extend(view)
        return view.nbytes

    def flush(self) -> None:
        """Do nothing. torch calls it at the end."""


def archive(tensor: torch.Tensor) -> Archive:
    """Return the archive of a tensor on the CPU. If the tensor is a part of a larger storage, the archive has only the part."""
    return frame_tensor(frame(tensor), _bytes_of(tensor).data)


def frame(tensor: torch.Tensor) -> Frame:
    """Return the bytes around a CPU tensor in its archive. They are recorded once for every dtype and shape."""
    if not tensor.numel():
        return _record_frame(tensor.detach().clone())
    key = tensor.dtype, tensor.shape
    if key not in _frames:
        # torch does not look at the bytes, so these pages take no memory.
        _frames[key] = _record_frame(torch.empty(tensor.shape, dtype=tensor.dtype))
    return _frames[key]


def _record_frame(tensor: torch.Tensor) -> Frame:
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
    """Return the tensor's memory as bytes, because numpy has no bfloat16."""
    flat = tensor.detach().contiguous().view(-1)
    array: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return array
