"""Who takes part: what each needs, what it is run with, and about how long it takes."""

import dataclasses
import importlib.util
from typing import Any

BF16, FP8 = "bf16", "fp8"
OUR_MODULE = "lt_train_bench"


@dataclasses.dataclass(frozen=True)
class Contender:
    """`module` of this package has its `run`. `is_usual` ones run unless others are named. `seconds` estimate its turn on
    an H200, for a shape of 32,768 tokens a step."""

    module: str
    precision: str
    seconds: int
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    packages: tuple[str, ...] = ()
    is_usual: bool = True
    on_cpu: bool = False
    several_gpus: bool = True
    one_gpu: bool = True

    @property
    def is_ours(self) -> bool:
        """Takes further options of lt-train, and its losses are compared with those of fp32."""
        return self.module == OUR_MODULE

    def obstacle(self, device: str, gpus: int) -> str | None:
        """Why it cannot run here."""
        if device == "cpu" and not self.on_cpu:
            return "needs a GPU"
        if gpus > 1 and not self.several_gpus:
            return "is for one GPU"
        if gpus == 1 and not self.one_gpu:
            return "is for several GPUs"
        absent = [package for package in self.packages if not is_importable(package)]
        return f"{', '.join(absent)} cannot be imported" if absent else None


def is_importable(module: str) -> bool:
    """Looked for, not imported: the parent of all contenders must not take a GPU."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


SDPA = {"attention": "sdpa"}
# What the GPUs share, where it is not the samples: layers, or each sample.
TENSOR, CONTEXT = {"shared": "tensor"}, {"shared": "context"}
OURS, ENGINE, TITAN, AO, FLASH4 = "megatron.core", "transformer_engine", "torchtitan", "torchao", "flash_attn.cute"

CONTENDERS: dict[str, Contender] = {
    "lt-train": Contender(OUR_MODULE, BF16, 35, {}, (OURS,), on_cpu=True),
    "lt-train-less-memory": Contender(OUR_MODULE, BF16, 35, {"recomputes_swiglu": True}, (OURS, FLASH4)),
    "lt-train-fsdp": Contender(OUR_MODULE, BF16, 40, {"fully_sharded": True}, (OURS,), one_gpu=False),
    "lt-train-tensor": Contender(OUR_MODULE, BF16, 40, TENSOR, (OURS,), False, one_gpu=False),
    "lt-train-context": Contender(OUR_MODULE, BF16, 40, CONTEXT, (OURS,), False, one_gpu=False),
    "lt-train-fp8": Contender(OUR_MODULE, FP8, 40, {"recipe": "tensorwise"}, (OURS,)),
    "lt-train-fp8-less-memory": Contender(OUR_MODULE, FP8, 40, {"recipe": "tensorwise", "recomputes_swiglu": True}, (OURS,)),
    "lt-train-fp8-blockwise": Contender(OUR_MODULE, FP8, 40, {"recipe": "blockwise", "format": "e4m3"}, (OURS,), False),
    "torch-loop": Contender("torch_loop", BF16, 45, {"attention": "cudnn"}, on_cpu=True, several_gpus=False),
    "torch-loop-flash4": Contender("torch_loop", BF16, 45, {"attention": "flash4"}, (FLASH4,), several_gpus=False),
    "torch-loop-fp8": Contender("torch_loop", FP8, 40, {"attention": "cudnn"}, (AO,), several_gpus=False),
    "megatron-te": Contender("megatron_te", BF16, 45, {}, (OURS, ENGINE)),
    "megatron-te-fp8": Contender("megatron_te", FP8, 35, {"recipe": "delayed"}, (OURS, ENGINE)),
    "megatron-te-fp8-tensorwise": Contender("megatron_te", FP8, 35, {"recipe": "tensorwise"}, (OURS, ENGINE)),
    "torchtitan": Contender("torchtitan_loop", BF16, 45, SDPA, (TITAN,)),
    "torchtitan-gathered": Contender(
        "torchtitan_loop", BF16, 45, {**SDPA, "keeps_gathered": True}, (TITAN,), False, one_gpu=False
    ),
    "torchtitan-swiglu": Contender("torchtitan_loop", BF16, 45, {**SDPA, "fused_swiglu": True}, (TITAN,), False),
    "torchtitan-rope": Contender("torchtitan_loop", BF16, 45, {**SDPA, "real_rope": True}, (TITAN,), False),
    "torchtitan-swiglu-rope": Contender(
        "torchtitan_loop", BF16, 45, {**SDPA, "fused_swiglu": True, "real_rope": True}, (TITAN,), False
    ),
    "torchtitan-graphs": Contender("torchtitan_loop", BF16, 55, {**SDPA, "cuda_graphs": True}, (TITAN,), False),
    "torchtitan-flex": Contender("torchtitan_loop", BF16, 85, {"attention": "flex"}, (TITAN,), False),
    "torchtitan-flex-flash": Contender("torchtitan_loop", BF16, 80, {"attention": "flex_flash"}, (TITAN, FLASH4), False),
    "torchtitan-tensor": Contender("torchtitan_loop", BF16, 60, {**SDPA, **TENSOR}, (TITAN,), False, one_gpu=False),
    "torchtitan-context": Contender("torchtitan_loop", BF16, 60, {**SDPA, **CONTEXT}, (TITAN,), False, one_gpu=False),
    "torchtitan-varlen": Contender("torchtitan_loop", BF16, 45, {"attention": "varlen"}, (TITAN,), False),
    "torchtitan-fp8": Contender("torchtitan_loop", FP8, 55, {**SDPA, "recipe": "tensorwise"}, (TITAN, AO)),
    "torchtitan-fp8-rowwise": Contender("torchtitan_loop", FP8, 55, {**SDPA, "recipe": "rowwise"}, (TITAN, AO), False),
}
FLOOR_SECONDS = 40
