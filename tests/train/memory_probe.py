"""Counts the bytes that the ranks of a plan hold in tensors; run by test_memory_estimate.py: `memory_probe.py WORK.json RANK`."""

import ctypes
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from lt_train.config.run_config import RunConfig
from lt_train.process.rank_environment import RankEnvironment


def main(work_file: str, rank: int) -> None:
    import torch

    from lt_train.launch import worker as rank_module
    from lt_train.process import device

    work = json.loads(Path(work_file).read_text())
    torch.set_num_threads(1)
    rank_module.silence_warnings()
    found: dict[str, dict[str, int]] = {}
    where = device.prepare("cpu", RankEnvironment(rank, rank, 2, 2, "127.0.0.1", 0, "test"))
    from megatron.core import parallel_state

    from lt_train.process.signals import Reason
    from lt_train.train import training_run
    from lt_train.train.trainer import Trainer

    for number, (name, text) in enumerate(work["plans"].items()):
        plan = RunConfig.from_json(text)
        ranks = plan.parallelism.world_size
        if rank >= ranks:
            continue
        place = RankEnvironment(rank, rank, ranks, ranks, "127.0.0.1", work["ports"][number], "test")
        os.environ.update(place.variables())
        sizes: list[Any] = []
        # Of models that are only built, nothing else is looked at.
        look = (lambda trainer: {}) if name in work["built"] else measure
        Trainer.run = lambda trainer, largest, sizes=sizes, look=look: sizes.append(look(trainer)) or Reason.NONE
        training_run.builder.build = grown = Growth(training_run.builder.build)
        training_run.train(plan, place, where)
        training_run.builder.build = grown.build
        found[name] = sizes[0] | {"building": grown.size_bytes}
        parallel_state.destroy_model_parallel()
    Path(f"{work_file}.{rank}").write_text(json.dumps(found))


def measure(trainer: Any) -> dict[str, int]:
    """Bytes after a step: what is in memory of each kind, every piece of memory once; activations of one micro batch."""
    import torch

    from lt_train.optim import optimizer
    from lt_train.train.forward_backward import forward_step

    trainer.stepper.clear_gradients = lambda: None
    trainer.stepper.train(trainer.batches)
    (chunk,) = trainer.state.chunks
    weights = Memory()
    for parameter in chunk.parameters():
        weights.add(parameter)
    gradients = Memory()
    for parameter in chunk.parameters():
        gradients.add(parameter.main_grad)
    state = Memory(weights.pieces)
    for inner in optimizer.torch_optimizers(trainer.state.optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                buffers = getattr(inner, "buffers", {}).get(parameter)
                state.add(parameter if buffers is None or buffers.low_bits is None else buffers.low_bits)
                for value in inner.state[parameter].values():
                    if isinstance(value, torch.Tensor) and value.dim():
                        state.add(value)
    kept = Memory(weights.pieces)
    with torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor):
        output, loss = forward_step(trainer.batches, chunk)
        loss(output)
    return {
        "weights": weights.size_bytes,
        "gradients": gradients.size_bytes,
        "optimizer": state.size_bytes,
        "activations": kept.size_bytes,
    }


class Growth:
    """Builds a model and counts by how much the process is larger than before at any time of it."""

    def __init__(self, build: Any):
        self.build = build
        self.size_bytes = 0

    def __call__(self, *arguments: Any) -> Any:
        # What earlier models have freed would be taken again without a growth.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident_bytes("VmRSS")
        built = self.build(*arguments)
        self.size_bytes = resident_bytes("VmHWM") - before
        return built


def resident_bytes(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


class Memory:
    """Pieces of memory, each counted once; those of `others` not at all."""

    def __init__(self, others: frozenset[int] | set[int] = frozenset()):
        self.others = others
        self.pieces: set[int] = set()
        self.size_bytes = 0
        self.held: list[Any] = []

    def add(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.pieces and storage.data_ptr() not in self.others:
            self.pieces.add(storage.data_ptr())
            self.size_bytes += storage.nbytes()
            self.held.append(tensor)
        return tensor


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
