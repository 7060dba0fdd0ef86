"""The measured cost of parallel layouts: tokens per second and GPU as a share of one GPU's. The planner chooses by them.

Two GPUs of one host (H200, torch 2.11, megatron-core 0.19.2, flash-attn-4), 8 layers of Llama 3 8B's width in bfloat16, beside
one GPU in the same call:

    lt-train bench --model llama3-8b --num-layers 8 --seq-length 8192 --micro-batch-size 4 --global-batch-size 4 --bf16

On 2026-11-27, with quack; data parallelism on four GPUs. FSDP's ranks read each other's shards by copy engines; ranks on several
nodes or with tensor parallelism cannot. After a new measurement only `MEASURED` and the dates change. A cost is the time that one
doubling of a parallel size adds to the work itself. The losses by a pipeline's bubble and by unequal stages are calculated
(`stage_work`); a pipeline's cost is the measured loss beyond them.

One mixture was measured, four layers of Qwen3-30B-A3B's width with 4 x 4,096 tokens on each GPU; `expert_costs` applies its
figures to other mixtures:

    lt-train bench --model qwen3-30b-a3b --num-layers 4 --seq-length 4096 --micro-batch-size 4 --global-batch-size 4 --bf16

On one H200 124,713 tokens/s with grouped GEMMs for a layer's experts (2026-11-25) and 26,566 with one expert after another
(2026-11-23); on two H200 with half of the experts each 121,080, beside 127,190 on one in the same call (2026-11-27). So the whole
model on four wastes 19%. It had 12,436 tokens/s: compared with a layer's time on one GPU, the exchange among four took a
quarter of the step.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measured:
    """A layout of two GPUs: its `options` beside the command above, and its `share` of one GPU's speed with the same samples."""

    options: tuple[str, ...]
    share: float


# With 16 micro batches and 5 and 3 layers, the bubble and the unequal stages leave so much.
PIPELINE_LEFT = 0.934
MEASURED = {
    "data": Measured(("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"), 0.98),
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

# Of the mixture: tokens of a micro batch, layers, experts of a layer, hidden size, and FLOPs of a token.
MIXTURE_TOKENS, MIXTURE_LAYERS, MIXTURE_EXPERTS, MIXTURE_WIDTH, MIXTURE_FLOPS = 4 * 4096, 4, 128, 2048, 3_634_888_704
GROUPED, ONE_BY_ONE = 124_713, 26_566
EXPERT_PARALLEL_SHARE = 121_080 / 127_190


def cost(kind: str) -> float:
    """Of a doubling of the tensor, context or pipeline parallel size; of data parallelism, sharded or not, whatever its size."""
    share = MEASURED[kind].share
    return max(0.0, (PIPELINE_LEFT if kind == "pipeline" else 1.0) / share - 1)
