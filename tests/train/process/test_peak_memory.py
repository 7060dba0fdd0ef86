"""The memory of a GPU that is reported has symmetric memory in it, which torch's allocator leaves out."""

import gc
from typing import Any

import pytest
import torch
from torch.distributed import _symmetric_memory

from lt_train.parallel import symmetric_memory
from lt_train.process import device

GIB = 1 << 30


class StandIn:
    """Memory on the CPU in the place of peers' GPUs."""

    @staticmethod
    def empty_strided_p2p(size: tuple[int], stride: tuple[int], dtype: torch.dtype, place: torch.device) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(device, "_outside_allocator", device._OutsideAllocator())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda place: 78 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda place: 80 * GIB)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C._distributed_c10d, "_SymmetricMemory", StandIn, raising=False)
    monkeypatch.setattr(_symmetric_memory, "rendezvous", lambda memory, group: None)
    return torch.device("cuda", 0)


def test_symmetric_memory_is_added(gpu: torch.device) -> None:
    assert device.peak_memory(gpu) == (78 * GIB, 80 * GIB)
    group: Any = None
    first, second = (symmetric_memory.allocate(13 * GIB, group) for _ in range(2))
    assert device.peak_memory(gpu) == (104 * GIB, 106 * GIB)
    # A peak stays one; what takes the place of a buffer is not added to it.
    del first
    gc.collect()
    third = symmetric_memory.allocate(10 * GIB, group)
    assert device.peak_memory(gpu) == (104 * GIB, 106 * GIB)
    fourth = symmetric_memory.allocate(10 * GIB, group)
    assert device.peak_memory(gpu) == (111 * GIB, 113 * GIB)
    del second, third, fourth


def test_a_cpu_has_the_resident_memory_of_the_process() -> None:
    needed, reserved = device.peak_memory(torch.device("cpu"))
    assert needed > 1 << 20 and reserved is None
