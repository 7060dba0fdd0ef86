"""The remedies for too little memory are options that lower the estimate of the given model and layout."""

import pytest
from layouts import assembled

from lt_train.planner.memory_advice import ELSEWHERE, MemoryAdvice

LLAMA = ("--model", "llama3.1-8b", "--bf16", "--mock-data", "--train-iters", "1")
RECOMPUTE = "--recompute-granularity full"
FSDP, DISTRIBUTED, TENSOR = (
    "--use-torch-fsdp2",
    "--use-distributed-optimizer",
    "--tensor-model-parallel-size 2 --sequence-parallel",
)


@pytest.mark.parametrize(
    ("words", "activations", "state"),
    [
        ("--ranks 1 --micro-batch-size 4", ["--micro-batch-size 2", RECOMPUTE], []),
        (f"--ranks 1 {RECOMPUTE} --recompute-method uniform --recompute-num-layers 1", [], []),
        ("--ranks 8", [RECOMPUTE, FSDP, DISTRIBUTED, TENSOR], [FSDP, DISTRIBUTED, TENSOR]),
        (f"--ranks 8 {FSDP}", [RECOMPUTE, TENSOR], []),
        (f"--ranks 8 {DISTRIBUTED}", [RECOMPUTE, FSDP, TENSOR], [FSDP, TENSOR]),
        ("--ranks 8 --pipeline-model-parallel-size 8", [RECOMPUTE], []),
        (f"--ranks 2 {TENSOR}", [RECOMPUTE], []),
    ],
)
def test_only_what_helps_is_named(words: str, activations: list[str], state: list[str]) -> None:
    config = assembled([*LLAMA, *words.split()])
    assert MemoryAdvice(config).text() == ", ".join([*activations, ELSEWHERE])
    assert MemoryAdvice(config).text(state_only=True) == ", ".join([*state, ELSEWHERE])


def test_a_mixture_of_experts_is_not_told_to_shard_what_fsdp_cannot() -> None:
    words = "--model qwen3-30b-a3b --bf16 --mock-data --train-iters 1 --ranks 8 --expert-model-parallel-size 8"
    assert FSDP not in MemoryAdvice(assembled(words.split())).text()
