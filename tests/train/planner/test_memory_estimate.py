"""The estimate of a rank's memory against the bytes that ranks hold, and the settings that decide about them."""

import json
import subprocess
import time
from pathlib import Path

import nursery
import pytest
from layouts import plan_of
from reserved_ports import free_port
from running import environment

from lt_shared.console import BadConfig, UsageError
from lt_train import cli
from lt_train.config.cluster import GIB, GPUS, Cluster
from lt_train.config.draft import assemble
from lt_train.config.run_config import RunConfig
from lt_train.planner import memory_estimate
from lt_train.planner.memory_estimate import Estimate

SMALL = (
    *("--model", "tiny", "--num-layers", "4", "--hidden-size", "128", "--ffn-hidden-size", "352", "--vocab-size", "2048"),
    *("--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "4", "--mock-data", "--device", "cpu"),
    *("--eval-iters", "0", "--train-iters", "2"),
)
ZERO = ("--ranks", "2", "--use-distributed-optimizer")
TP2 = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
FULL = ("--recompute-granularity", "full")
LAYOUTS = {
    "alone": (),
    "bf16": ("--bf16",),
    # In Triton's interpreter, which is slow.
    "kernels": (
        *("--bf16", "--kernels", "triton", "--num-layers", "1", "--vocab-size", "128", "--seq-length", "16"),
        *("--micro-batch-size", "1", "--global-batch-size", "1"),
    ),
    "bf16-gradients": ("--bf16", "--grad-reduce-in-bf16"),
    "gpt": ("--model", "tiny-gpt3", "--bf16"),
    "delta": ("--model", "tiny-qwen3.5"),
    "parallel-layers": ("--model", "tiny-cohere2"),
    "limited-queries": ("--model", "tiny-olmo"),
    "xielu": ("--model", "tiny-apertus"),
    "zero": ZERO,
    "bf16-zero": (*ZERO, "--bf16"),
    # Of few tokens the weights that a layer gathers are the larger part.
    "fsdp": ("--ranks", "2", "--use-torch-fsdp2", "--seq-length", "256"),
    "bf16-fsdp": ("--ranks", "2", "--use-torch-fsdp2", "--bf16", "--seq-length", "256"),
    "tp2": (*TP2, "--bf16"),
}
RECOMPUTED = {
    "recompute": (*FULL, "--bf16"),
    "block": (*FULL, "--recompute-method", "block", "--recompute-num-layers", "3"),
}
LARGE = {
    "large-fsdp": (
        *("--ranks", "2", "--use-torch-fsdp2", "--hidden-size", "1024", "--ffn-hidden-size", "4096", "--seq-length", "16"),
    ),
}
# Weights, gradients and optimizer are counted; what the backward pass needs depends on the kernels too.
TOLERANCES = {"weights": 0.01, "gradients": 0.01, "optimizer": 0.01, "activations": 0.3}


def estimate(config: RunConfig) -> Estimate:
    return memory_estimate.estimate(config).fullest_rank


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Per layout, the bytes of each kind on rank 0."""
    work_file = tmp_path_factory.mktemp("memory") / "work.json"
    plans = {name: plan_of((*SMALL, *options)).to_json() for name, options in (LAYOUTS | RECOMPUTED | LARGE).items()}
    work = {"plans": plans, "ports": [free_port() for _ in plans], "built": list(LARGE)}
    work_file.write_text(json.dumps(work))
    probe = Path(__file__).parents[1] / "memory_probe.py"
    started = [subprocess.Popen([nursery.python(), probe, work_file, str(rank)], env=environment()) for rank in range(2)]
    try:
        while all(process.poll() in (None, 0) for process in started) and any(process.poll() is None for process in started):
            time.sleep(0.1)
        assert [process.poll() for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
            process.wait()
    found: dict[str, dict[str, int]] = json.loads(Path(f"{work_file}.0").read_text())
    return found


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_estimate_is_near_the_bytes_held(layout: str, kind: str, held: dict[str, dict[str, int]]) -> None:
    expected = getattr(estimate(plan_of((*SMALL, *LAYOUTS[layout]))), kind)
    assert held[layout][kind] == pytest.approx(expected, rel=TOLERANCES[kind])


def test_recomputation_keeps_the_inputs_of_layers(held: dict[str, dict[str, int]]) -> None:
    """What is computed again in the backward pass is in the estimate and not among what the forward pass keeps."""
    for layout, without in (("recompute", "bf16"), ("block", "alone")):
        assert held[layout]["activations"] < estimate(plan_of((*SMALL, *RECOMPUTED[layout]))).activations
        assert held[layout]["activations"] < held[without]["activations"] / 2


def test_no_rank_ever_holds_a_model_that_is_split_among_ranks(held: dict[str, dict[str, int]]) -> None:
    plan = plan_of((*SMALL, *LARGE["large-fsdp"]))
    whole_bytes = 4 * plan.architecture.parameters(plan.padded_vocab_size)
    assert whole_bytes > 200e6
    # Its half, one layer of four, and what drawing the weights takes.
    assert whole_bytes / 2 < held["large-fsdp"]["building"] < whole_bytes * 0.85


def test_weights_of_all_stages_add_up_to_the_architecture() -> None:
    for model in ("tiny", "tiny-gpt3", "tiny-qwen2", "tiny-qwen3", "tiny-mixtral", "llama3.1-8b", "gpt3-1.7b"):
        plan = plan_of(("--model", model, "--mock-data", "--eval-iters", "0", "--device", "cpu", "--seq-length", "64"))
        held_bytes = estimate(plan).weights
        assert held_bytes == 4 * plan.architecture.parameters(plan.padded_vocab_size), model


def test_a_large_model_is_estimated_at_once_and_in_full() -> None:
    """Llama 3.1 70B on 64 GPUs: 70.6 billion x 18 bytes, of which 12 are split among the 8 ranks of a data-parallel group."""
    plan = plan_of(
        (
            *("--model", "llama3.1-70b", "--mock-data", "--eval-iters", "0", "--device", "cpu", "--bf16", "--ranks", "64"),
            *("--tensor-model-parallel-size", "8", "--sequence-parallel", "--use-distributed-optimizer"),
        )
    )
    found = estimate(plan)
    share = 70.6e9 / 8
    assert found.weights == pytest.approx(2 * share, rel=0.01)
    assert found.gradients == pytest.approx(4 * share, rel=0.01)
    assert found.optimizer == pytest.approx(12 * share / 8, rel=0.01)
    assert str(found).startswith("about ")


def test_ranks_that_share_experts_have_all_tokens_of_a_layer_at_a_time() -> None:
    """128 tokens of each of two ranks, 128 numbers of 4 bytes each, go to 2 of 4 experts, and the fullest rank has a quarter more
    rows. megatron-core's rows are kept instead, and there while a layer computes."""
    shared = (*SMALL, *FULL, "--model", "tiny-mixtral", "--ranks", "2", "--expert-model-parallel-size", "2")
    small = (*shared, "--vocab-size", "128", "--moe-token-dispatcher-type")
    plans = [plan_of((*small, name)) for name in ("alltoall", "allgather")]
    assert (plans[0].architecture.num_experts, plans[0].architecture.moe_router_topk) == (4, 2)
    found, sent_by_megatron = (estimate(plan).activations for plan in plans)
    rows, whole_tokens = 128 * 2 * 5 // 4, 2 * 2 * 128 * 128 * 4
    places = 2 * 128 * (2 * 4 + 2 * 20) - 128 * 2 * 20
    assert found - sent_by_megatron == whole_tokens + places - 2 * rows * 128 * 4


# Peaks of torch's allocator on H200 GPUs, in GiB: docs/guides/speed.md and tools/train/PERFORMANCE.md.
FOUR_SAMPLES = ("--micro-batch-size", "4", "--global-batch-size", "4")
SHARED = (
    *("--micro-batch-size", "2", "--global-batch-size", "8", "--expert-model-parallel-size", "4"),
    "--use-distributed-optimizer",
)
MEASURED_GIB = {
    ("qwen3-30b-a3b", "--num-layers", "4", *FOUR_SAMPLES): 50.4,
    ("qwen3-30b-a3b", "--num-layers", "8", *FOUR_SAMPLES): 87.3,
    ("mixtral-8x7b", "--num-layers", "2", *FOUR_SAMPLES): 51.3,
    ("gpt-oss-20b", "--num-layers", "4", *FOUR_SAMPLES): 71.0,
    ("glm-4.5-air", "--num-layers", "3", *FOUR_SAMPLES): 133.3,
    ("deepseek-v3", "--num-layers", "2", "--moe-layer-freq", "([0]+[1])", "--mtp-num-layers", "0", *SHARED): 75.1,
    ("qwen3-30b-a3b", "--grad-reduce-in-bf16", *SHARED): 133.9,
}


def mixture_gib(words: tuple[str, ...]) -> float:
    arguments = ("--model", *words, "--bf16", "--seq-length", "4096", "--mock-data", "--eval-iters", "0")
    options = cli.command.make_context("lt-train", list(arguments)).params
    there = Cluster(GPUS["h200-141gb"], 1, options["expert_model_parallel_size"])
    return estimate(assemble(options, (), there)).total / GIB


@pytest.mark.parametrize("words", MEASURED_GIB, ids=lambda words: " ".join(words[:3]))
def test_mixtures_are_estimated_as_they_were_measured(words: tuple[str, ...]) -> None:
    assert mixture_gib(words) == pytest.approx(MEASURED_GIB[words], rel=0.03)


def test_no_less_is_estimated_than_four_ranks_held() -> None:
    """Of all of Qwen3-30B-A3B, whose peak was 6 GiB above an estimate that knew nothing of unequal routing and norms of heads."""
    words = ("qwen3-30b-a3b", "--grad-reduce-in-bf16", *SHARED)
    assert mixture_gib(words) > MEASURED_GIB[words]


def refused(*options: str) -> str:
    with pytest.raises((BadConfig, UsageError)) as caught:
        plan_of((*SMALL, *options))
    return str(caught.value)


REFUSED = {
    "Megatron-LM would quietly take selective": ("--recompute-activations", *FULL),
    "--recompute-modules without selective": ("--recompute-modules", "mlp"),
    "without full recomputation": ("--recompute-method", "block"),
    "--recompute-modules attention: unknown": ("--recompute-activations", "--recompute-modules", "attention"),
    "have no experts": ("--recompute-activations", "--recompute-modules", "moe"),
    "part of the GEMMs": ("--recompute-activations", "--recompute-modules", "swiglu"),
    "recomputes the norms of TransformerEngine's layers alone": ("--recompute-activations", "--recompute-modules", "layernorm"),
    "do not divide into such groups": (*FULL, "--recompute-num-layers", "3"),
    "--grad-reduce-in-bf16 and --accumulate": ("--bf16", "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"),
    "--grad-reduce-in-bf16 with weights in float32": ("--grad-reduce-in-bf16",),
    "gathers what the distributed optimizer shards": ("--ranks", "2", "--overlap-param-gather"),
    "shards the optimizer and overlaps": (*ZERO, "--use-torch-fsdp2"),
    "has no loss scaling": ("--use-torch-fsdp2", "--fp16"),
    "float32 shards": ("--use-torch-fsdp2", "--bf16", "--grad-reduce-in-bf16"),
    "for each micro batch of a pipeline": ("--use-torch-fsdp2", "--pipeline-model-parallel-size", "2"),
    "have different experts": (
        *("--model", "tiny-mixtral", "--ranks", "2", "--expert-model-parallel-size", "2", "--use-torch-fsdp2"),
    ),
    "without sharded state": ("--ranks", "2", "--num-distributed-optimizer-instances", "2"),
    "1 ranks with the same experts do not divide into 2 replicas": (
        *("--model", "tiny-mixtral", "--expert-model-parallel-size", "2", *ZERO, "--num-distributed-optimizer-instances", "2"),
    ),
    "do not divide into 3 replicas": (*ZERO, "--num-distributed-optimizer-instances", "3"),
    "--cpu-offloading-num-layers 2: megatron-core offloads": ("--cpu-offloading-num-layers", "2"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_work_is_refused_before_any_rank_starts(reason: str) -> None:
    assert reason in refused(*REFUSED[reason])


def test_recompute_activations_is_short_for_selective() -> None:
    recompute = plan_of((*SMALL, "--recompute-activations")).memory.recompute
    assert recompute is not None
    assert (recompute.granularity, recompute.modules) == ("selective", ("core_attn",))


def test_gradients_are_summed_in_fp32_unless_asked_otherwise() -> None:
    assert plan_of((*SMALL, "--bf16")).memory.gradient_dtype == "float32"
    assert plan_of((*SMALL, "--bf16", "--grad-reduce-in-bf16")).memory.gradient_dtype == "bfloat16"
