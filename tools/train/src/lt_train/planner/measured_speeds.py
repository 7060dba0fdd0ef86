"""The measured speed of parallel layouts, by which the planner chooses: tokens/s per GPU as a share of a single GPU's speed.

The speeds were measured on 2026-11-27 with 8 layers of Llama 3 8B's width in bfloat16 on two GPUs in a host (data parallelism:
four), compared with one GPU in the same call (H200, torch 2.11, megatron-core 0.19.2, flash-attn-4, quack):

    lt-train bench --model llama3-8b --num-layers 8 --seq-length 8192 --micro-batch-size 4 --global-batch-size 4 --bf16
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """A layout of two GPUs: the `options` added to the command, and its `share` of a single GPU's speed for the same samples."""

    options: tuple[str, ...]
    share: float


# With 16 micro batches and stages of 5 and 3 layers, the bubble and the unequal stages leave this share of the speed.
PIPELINE_SHARE_LEFT = 0.934
# After a new measurement, only this table and the dates change.
MEASURED = {
    "data": Measured(("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"), 0.98),
    # FSDP's ranks read each other's shards by copy engines; ranks on several nodes or with tensor parallelism cannot.
    "fully sharded": Measured(("--use-torch-fsdp2",), 0.98),
    "tensor": Measured(("--tensor-model-parallel-size", "2", "--sequence-parallel"), 0.94),
    "context": Measured(("--context-parallel-size", "2", "--seq-length", "16384", "--global-batch-size", "4"), 0.94),
    "pipeline": Measured(
        (
            *("--pipeline-model-parallel-size", "2", "--decoder-first-pipeline-num-layers", "5"),
            *("--micro-batch-size", "1", "--global-batch-size", "16"),
        ),
        0.934,
    ),
}

# One mixture was measured, four layers of Qwen3-30B-A3B's width; `expert_costs` applies its figures to other mixtures:
#
#     lt-train bench --model qwen3-30b-a3b --num-layers 4 --seq-length 4096 --micro-batch-size 4 --global-batch-size 4 --bf16
#
# Tokens of a micro batch on each GPU, layers, experts of a layer, hidden size, and FLOPs per token.
MIXTURE_TOKENS, MIXTURE_LAYERS, MIXTURE_EXPERTS, MIXTURE_WIDTH, MIXTURE_FLOPS = 4 * 4096, 4, 128, 2048, 3_634_888_704
# Tokens per second on one H200: a layer's experts in grouped GEMMs (2026-11-25), and one expert after another (2026-11-23).
GROUPED, ONE_BY_ONE = 124_713, 26_566
# Tokens per second and GPU on two H200 with half of the experts each, and on one H200 in the same call (2026-11-27). By this
# figure the whole model wastes 19% on four GPUs. It had 12,436 tokens/s there, and the exchange took a quarter of the step,
# compared with a layer's time on one GPU.
EXPERT_PARALLEL_SHARE = 121_080 / 127_190


def cost(kind: str) -> float:
    """Return the time that one doubling of a parallel size adds to the work: 0.1 is a tenth more.

    Data parallelism, sharded or not, has one cost for every size. `stage_work` calculates the losses by a pipeline's bubble and
    unequal stages; the cost of a pipeline is the measured loss beyond them.
    """
    share = MEASURED[kind].share
    return max(0.0, (PIPELINE_SHARE_LEFT if kind == "pipeline" else 1.0) / share - 1)
