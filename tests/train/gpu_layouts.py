"""Every layout that the GPUs at hand allow, beside one GPU.

    python tests/train/gpu_layouts.py                # all families
    python tests/train/gpu_layouts.py bf16 fp8       # these
    python tests/train/gpu_layouts.py four           # the layouts of four GPUs alone, for a machine that is lent for minutes
    python tests/train/gpu_layouts.py --cpu four     # the same on four gloo ranks: the families in fp32, a smaller model

Not a part of the test session, which runs without a GPU. Prints a table of the largest difference of any step's or evaluation's
loss, the speed and the memory of the fullest GPU; fails when a layout differs by more than its tolerance. The model is small, so
several runs share the GPUs: the speeds say no more than that nothing is slow by an accident.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy
from layouts import Outcome, plan_of, train_all

from lt_shared.console import ToolError
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_train.process.device import gpu_count

AT_ONCE = 3
STEPS = 8
HALF = 4
FOUR = 4
VOCABULARY = 4096
EOD = VOCABULARY - 1
MODEL = (
    *("--model", "tiny", "--num-layers", "4", "--hidden-size", "512", "--ffn-hidden-size", "1536"),
    *("--num-attention-heads", "8", "--vocab-size", str(VOCABULARY), "--seq-length", "1024"),
    *("--max-position-embeddings", "1024", "--micro-batch-size", "2", "--global-batch-size", "16"),
    *("--train-iters", str(STEPS), "--log-interval", "1", "--eval-interval", str(STEPS), "--eval-iters", "1", "--lr", "1e-3"),
)
ON_GPUS = ("--device", "cuda")
ON_A_CPU = ("--device", "cpu", "--hidden-size", "128", "--ffn-hidden-size", "256", "--seq-length", "128")
TP2 = ("--tensor-model-parallel-size", "2")
TP4 = ("--tensor-model-parallel-size", "4")
SP = ("--sequence-parallel",)
PP2 = ("--pipeline-model-parallel-size", "2")
PP4 = ("--pipeline-model-parallel-size", "4")
ZERO_BUBBLE = ("--pipeline-schedule", "zero-bubble")
VPP2 = ("--num-virtual-stages-per-pipeline-rank", "2")
CP2 = ("--context-parallel-size", "2")
CP4 = ("--context-parallel-size", "4")
EP2 = ("--expert-model-parallel-size", "2")
EP4 = ("--expert-model-parallel-size", "4")
ZERO = ("--use-distributed-optimizer",)
OVERLAP = (*ZERO, "--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "1000000")
FSDP = ("--use-torch-fsdp2",)
FULL = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
SELECTIVE = ("--recompute-granularity", "selective", "--recompute-modules", "core_attn,mlp")
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
WINDOW = ("--window-size", "255,0")
QUERY_GROUPS = ("--num-query-groups", "4")
BF16 = ("--bf16", *QUERY_GROUPS)
FP32 = QUERY_GROUPS
FP8 = ("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise")
BLOCKWISE = ("--fp8-format", "e4m3", "--fp8-recipe", "blockwise")

# Experts of their own width; the size of the dense model's means nothing to them. Four of them a token, so that four ranks send
# whole tokens.
SMALL_EXPERTS = ("--moe-ffn-hidden-size", "256", "--moe-router-topk", "4")
QWEN3_MOE = ("--model", "tiny-qwen3-moe", *SMALL_EXPERTS)
# With biases; and with shared experts.
GPT_OSS = ("--model", "tiny-gpt-oss", *SMALL_EXPERTS)
GLM4_MOE = ("--model", "tiny-glm4-moe", *SMALL_EXPERTS)
LATENT_HEADS = ("--qk-head-dim", "128", "--qk-pos-emb-head-dim", "64", "--v-head-dim", "128")
SEQUENCE_LOSS = ("--moe-router-load-balancing-type", "seq_aux_loss", "--moe-aux-loss-coeff", "0.01")
GLOBAL_LOSS = ("--moe-router-load-balancing-type", "global_aux_loss", "--moe-aux-loss-coeff", "0.01")
CAPACITY = ("--moe-expert-capacity-factor", "1.0")
AVERAGED = ("--ema-decay", "0.9")
DEEPSEEK = ("--bf16", "--model", "tiny-deepseek-v3", "--moe-ffn-hidden-size", "256", *LATENT_HEADS)

# Name of the family, its options on one GPU, and the tolerance of the layouts within it. fp32 sums in another order, amplified by
# the steps; bf16 rounds each layer's output to 8 bits, fp8 each product's operands to 3 or 4. A token whose
# two best experts are nearly equal may go to the other one.
FAMILIES: dict[str, tuple[tuple[str, ...], float]] = {
    "fp32": (FP32, 1e-4),
    "bf16": (BF16, 2e-2),
    "fp8": ((*BF16, *FP8), 5e-2),
    "fp8 blockwise": ((*BF16, *BLOCKWISE), 5e-2),
    "fp32 documents": ((*FP32, *DOCUMENTS), 1e-4),
    "bf16 documents": ((*BF16, *DOCUMENTS), 2e-2),
    "bf16 window": ((*BF16, *WINDOW), 2e-2),
    "bf16 window documents": ((*BF16, *WINDOW, *DOCUMENTS), 2e-2),
    # A window in every second layer.
    "bf16 sinks": ((*BF16, "--model", "tiny-gpt-oss", "--kv-channels", "64"), 2e-2),
    # Of DeepSeek's heads, which flash-attn-4 compiles for.
    "bf16 deepseek": (DEEPSEEK, 2e-2),
    "fp32 deep": ((*FP32, "--num-layers", "8"), 1e-4),
    "fp32 experts": ((*FP32, "--model", "tiny-mixtral"), 2e-3),
    "fp32 qwen3-moe": ((*FP32, *QWEN3_MOE), 2e-3),
    "bf16 qwen3-moe": ((*BF16, *QWEN3_MOE), 2e-2),
    "fp32 sequence loss": ((*FP32, *QWEN3_MOE, *SEQUENCE_LOSS), 2e-3),
    "fp32 global loss": ((*FP32, *QWEN3_MOE, *GLOBAL_LOSS), 2e-3),
    "fp32 capacity": ((*FP32, *QWEN3_MOE, *CAPACITY), 2e-3),
    "bf16 averaged weights": ((*BF16, *AVERAGED), 2e-2),
    # As many rows an expert as fp8 pays for.
    "fp8 experts": ((*BF16, *FP8, "--model", "tiny-mixtral", "--micro-batch-size", "4"), 5e-2),
    "fp8 qwen3-moe": ((*BF16, *FP8, *QWEN3_MOE), 5e-2),
    "fp32 gpt-oss": ((*FP32, *GPT_OSS), 2e-3),
    "bf16 gpt-oss": ((*BF16, *GPT_OSS), 2e-2),
    "fp32 glm4-moe": ((*FP32, *GLM4_MOE), 2e-3),
    "bf16 glm4-moe": ((*BF16, *GLM4_MOE), 2e-2),
    "fp32 gemma2": ((*FP32, "--model", "tiny-gemma2", *WINDOW), 1e-4),
    "bf16 gemma2": ((*BF16, "--model", "tiny-gemma2", *WINDOW), 2e-2),
    "bf16 gemma3": ((*BF16, "--model", "tiny-gemma3", "--num-layers", "6", *WINDOW), 2e-2),
    "fp32 olmo3": ((*FP32, "--model", "tiny-olmo3", *WINDOW), 1e-4),
    "bf16 olmo3": ((*BF16, "--model", "tiny-olmo3", *WINDOW), 2e-2),
}
# Layouts by the number of GPUs; each for the families named.
DENSE = ("fp32", "bf16")
DENSE_FP8 = ("fp8", "fp8 blockwise")
EXPERTS = ("fp32 experts", "fp32 qwen3-moe", "bf16 qwen3-moe")
ROUTINGS = ("fp32 sequence loss", "fp32 global loss", "fp32 capacity")
EXPERTS_FP8 = ("fp8 experts", "fp8 qwen3-moe")
BIASED_EXPERTS = ("fp32 gpt-oss", "bf16 gpt-oss")
# FSDP2 is refused for GLM-4.5: the balancing biases of its router are no weights.
UNUSUAL_EXPERTS = (*BIASED_EXPERTS, "fp32 glm4-moe", "bf16 glm4-moe")
# Norms behind the layers, and layers with a window beside others without.
MIXED = ("fp32 gemma2", "bf16 gemma2", "bf16 gemma3", "fp32 olmo3", "bf16 olmo3")
# Of flash-attn-4 with a shared sequence.
SHARED = ("bf16 documents", "bf16 window", "bf16 window documents", "bf16 sinks", "bf16 deepseek")
FLEX = ("--attention-backend", "fused")
Layout = tuple[int, str, tuple[str, ...], tuple[str, ...]]
LAYOUTS: list[Layout] = [
    (1, "recompute full", FULL, (*DENSE, *MIXED, "bf16 documents")),
    (1, "recompute selective", SELECTIVE, DENSE),
    (
        1,
        "SwiGLU recomputed",
        ("--recompute-granularity", "selective", "--recompute-modules", "swiglu"),
        DENSE_FP8,
    ),
    (1, "asynchronous save", ("--async-save", "--save-interval", "3"), ("bf16",)),
    (2, "TP2", TP2, DENSE),
    (2, "TP2 SP", (*TP2, *SP), (*DENSE, *MIXED, *DENSE_FP8, *ROUTINGS, "fp32 experts", "bf16 averaged weights")),
    (2, "TP2 SP, collectives by NCCL", (*TP2, *SP, "--no-tp-comm-overlap"), ("bf16", "fp8")),
    (2, "TP2 SP, recompute full", (*TP2, *SP, *FULL), ("bf16",)),
    (2, "PP2", PP2, (*DENSE, *MIXED, *ROUTINGS, "bf16 averaged weights")),
    (2, "PP2, 3 and 1 layers", (*PP2, "--decoder-first-pipeline-num-layers", "3"), ("fp32",)),
    (2, "PP2 VPP2", (*PP2, *VPP2), (*DENSE, "fp32 documents")),
    (2, "PP2 zero bubble", (*PP2, *ZERO_BUBBLE), (*DENSE, "fp8", "bf16 documents", *EXPERTS)),
    (2, "PP2 zero bubble, recompute full", (*PP2, *ZERO_BUBBLE, *FULL), ("bf16",)),
    (1, "FlexAttention", FLEX, SHARED),
    (2, "CP2", CP2, (*DENSE, *MIXED, *DENSE_FP8, *ROUTINGS, "fp32 documents", *SHARED)),
    (2, "CP2, FlexAttention", (*CP2, *FLEX), ("bf16", "bf16 documents")),
    (2, "CP2, recompute full", (*CP2, *FULL), ("bf16", "bf16 documents")),
    (2, "CP2, recompute selective", (*CP2, *SELECTIVE), ("bf16",)),
    (2, "EP2", EP2, (*EXPERTS, *ROUTINGS, *EXPERTS_FP8, *UNUSUAL_EXPERTS)),
    (2, "EP2, recompute full", (*EP2, *FULL), ("fp32 qwen3-moe", "bf16 qwen3-moe")),
    (2, "EP2, overlap", (*EP2, *OVERLAP), ("fp32 qwen3-moe", "bf16 qwen3-moe")),
    (2, "DP2", (), ("fp32",)),
    (
        2,
        "DP2, distributed optimizer",
        ZERO,
        (*DENSE, *DENSE_FP8, *EXPERTS_FP8, *ROUTINGS, "fp32 experts", "bf16 averaged weights"),
    ),
    (2, "DP2, overlap", OVERLAP, DENSE),
    (2, "FSDP2", FSDP, (*DENSE, *MIXED, *DENSE_FP8, *EXPERTS, *ROUTINGS, *EXPERTS_FP8, *BIASED_EXPERTS, "bf16 averaged weights")),
    (2, "FSDP2, recompute full", (*FSDP, *FULL), ("bf16", "bf16 qwen3-moe")),
    (2, "FSDP2, SwiGLU recomputed", (*FSDP, "--recompute-granularity", "selective", "--recompute-modules", "swiglu"), ("bf16",)),
    (4, "TP4", TP4, DENSE),
    (4, "TP4 SP", (*TP4, *SP), (*DENSE, "fp8")),
    (4, "TP2 PP2 SP", (*TP2, *PP2, *SP), (*DENSE, *DENSE_FP8)),
    (4, "TP2 PP2 VPP2 SP", (*TP2, *PP2, *VPP2, *SP), DENSE),
    (4, "TP2 CP2 SP", (*TP2, *CP2, *SP), (*DENSE, "bf16 documents")),
    (4, "PP2 CP2", (*PP2, *CP2), DENSE),
    (4, "CP4", CP4, (*DENSE, *SHARED)),
    (4, "TP2 SP DP2, overlap", (*TP2, *SP, *OVERLAP), DENSE),
    (4, "PP2 VPP2 DP2, overlap", (*PP2, *VPP2, *OVERLAP), DENSE),
    (4, "CP2 DP2, distributed optimizer", (*CP2, *ZERO), DENSE),
    (4, "PP4", PP4, (*DENSE, "fp32 deep")),
    (4, "PP4 zero bubble", (*PP4, *ZERO_BUBBLE), (*DENSE, "fp8", "fp32 deep")),
    (4, "PP2 zero bubble TP2 SP", (*PP2, *ZERO_BUBBLE, *TP2, *SP), (*DENSE, "fp8")),
    (4, "PP2 zero bubble DP2, overlap", (*PP2, *ZERO_BUBBLE, *OVERLAP), DENSE),
    (4, "PP4 VPP2", (*PP4, *VPP2), ("fp32 deep",)),
    (4, "EP4", EP4, (*EXPERTS, *UNUSUAL_EXPERTS)),
    (4, "EP2 DP2, distributed optimizer", (*EP2, *ZERO), EXPERTS),
    (4, "EP2 TP2 SP", (*EP2, *TP2, *SP), (*EXPERTS, "fp32 gpt-oss")),
    (4, "FSDP4", FSDP, (*DENSE, *EXPERTS)),
    (4, "FSDP2 TP2 SP", (*FSDP, *TP2, *SP), DENSE),
    (4, "FSDP2 CP2", (*FSDP, *CP2), DENSE),
    (4, "FSDP2 in 2 copies", (*FSDP, "--num-distributed-optimizer-instances", "2"), (*DENSE, "bf16 qwen3-moe")),
]
# Each goes on where the one before it stopped, in another layout; the last ends as one GPU does.
Move = tuple[int, str, tuple[str, ...]]
MOVES: dict[int, list[Move]] = {
    2: [(2, "resume 1: TP2 SP", (*TP2, *SP)), (2, "resume 2: PP2 VPP2", (*PP2, *VPP2)), (2, "resume 3: CP2", CP2)],
    4: [(4, "resume 1: TP2 PP2 SP", (*TP2, *PP2, *SP)), (4, "resume 2: FSDP4", FSDP), (4, "resume 3: CP2 DP2", (*CP2, *ZERO))],
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"four, or of: {', '.join(FAMILIES)}")
    parser.add_argument("--cpu", action="store_true", help="four gloo ranks instead of GPUs")
    chosen = parser.parse_args()
    if unknown := set(chosen.families) - {"four", *FAMILIES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return chosen


def main(chosen: argparse.Namespace) -> int:
    """Run the families chosen. A few at a time: the models are small, and most of the time is start and compilation."""
    gpus = FOUR if chosen.cpu else gpu_count()
    least = FOUR if "four" in chosen.families else 1
    if gpus < least:
        print(f"four GPUs are needed, and here are {gpus}")
        return 2
    families = [name for name in chosen.families if name != "four"] or list(FAMILIES)
    if least == FOUR:
        families = [name for name in families if any(ranks == FOUR and name in members for ranks, _, _, members in LAYOUTS)]
    if chosen.cpu:
        families = [name for name in families if name.startswith("fp32")]
    layouts = [layout for layout in LAYOUTS if least <= layout[0] <= gpus]
    print(f"{'layout':52} {'loss from':>9} {'to':>9} {'difference':>10} {'tokens/s':>10} {'GiB':>6}", flush=True)
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(1 if chosen.cpu else AT_ONCE) as pool:
        common = (*(ON_A_CPU if chosen.cpu else ON_GPUS), "--data-cache-path", f"{place}/cache", write_text(Path(place) / "data"))
        runs = [
            pool.submit(run_family, family, layouts, gpus, Path(place) / family.replace(" ", "-"), common) for family in families
        ]
        for run in as_completed(runs):
            lines, failures = run.result()
            print("\n".join(lines), flush=True)
            failed += failures
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def run_family(
    family: str, layouts: list[Layout], gpus: int, place: Path, common: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """The table's lines of a family, and the names of the runs that failed."""
    own, _ = FAMILIES[family]
    mine = [(ranks, name, options) for ranks, name, options, members in layouts if family in members]
    commands = {
        f"{family}: {name}": (*MODEL, *own, *common, "--ranks", str(ranks), *options)
        for ranks, name, options in [(1, "one GPU", ()), *mine]
    }
    if family == "fp32" and gpus > 1:
        commands |= moves(MOVES[4 if gpus >= 4 else 2], place / "saving", lambda *options: (*MODEL, *FP32, *options, *common))
    refused = {name: reason for name, command in commands.items() if (reason := refusal(command))}
    runs = {name: command for name, command in commands.items() if name not in refused}
    saving = {name: command for name, command in runs.items() if name.startswith("resume") or "--async-save" in command}
    outcomes = train_all({name: runs[name] for name in runs if name not in saving}, place / "runs", gpus)
    outcomes |= train_all(saving, place / "saving", gpus, saving=True)
    reports = {name: report(name, family, outcomes.get(name), refused, outcomes) for name in commands}
    return [line for line, _ in reports.values()], [name for name, (_, is_right) in reports.items() if not is_right]


def moves(parts: list[Move], place: Path, command: Callable[..., tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A run in three parts."""
    found: dict[str, tuple[str, ...]] = {}
    before = None
    for part, (ranks, name, options) in enumerate(parts):
        end = ("--exit-interval", str((2, HALF, STEPS)[part]))
        start = ("--load", str(place / before)) if before else ()
        found[name] = command("--ranks", str(ranks), *options, *start, *end)
        before = name
    return found


def refusal(command: tuple[str, ...]) -> str | None:
    """Why lt-train does not start this run on this machine."""
    try:
        plan_of([*command, "--save", "run"])
    except ToolError as error:
        return str(error)
    return None


def report(
    name: str, family: str, outcome: Outcome | None, refused: dict[str, str], outcomes: dict[str, Outcome]
) -> tuple[str, bool]:
    """The run's line, and whether it is as it should be."""
    alone = outcomes.get(f"{family}: one GPU")
    if outcome is None:
        # Some layouts are refused with gloo; anything else on this list should run.
        return f"{name:52} refused: {refused[name]}", "gloo" in refused[name]
    if outcome.error is not None or alone is None or alone.error is not None:
        return f"{name:52} FAILED\n{outcome.error}", False
    difference = max(abs(loss - alone.losses[key]) for key, loss in outcome.losses.items())
    is_right = difference <= FAMILIES[family][1]
    losses = [loss for (kind, _), loss in sorted(outcome.losses.items()) if kind == "step"]
    speed, memory = outcome.tokens_per_second or 0.0, outcome.peak_bytes / 2**30
    line = f"{name:52} {losses[0]:9.5f} {losses[-1]:9.5f} {difference:10.1e} {speed:10,.0f} {memory:6.2f}"
    return line + ("" if is_right else "  DIFFERS"), is_right


def write_text(prefix: Path) -> str:
    """Random documents of 300 tokens, skewed so that a model learns within a few steps."""
    generator = numpy.random.default_rng(5)
    with indexed_dataset.Writer(str(prefix), numpy.uint16) as writer:
        for _ in range(2000):
            tokens = (generator.random(int(generator.integers(50, 550))) ** 3 * EOD).astype(numpy.uint16)
            writer.append_document(numpy.append(tokens, numpy.uint16(EOD)))
        dataset = Dataset(str(prefix), writer.documents, writer.tokens, "uint16", VOCABULARY, EOD, None)
        sidecar = json.dumps({"v": 1, "dataset": manifest.record_of(dataset)}).encode()
        writer.publish((manifest.sidecar_path(str(prefix)), sidecar))
    return str(prefix)


if __name__ == "__main__":
    sys.exit(main(arguments()))
