"""What of a layout is refused before any rank starts, and how Megatron's options for stages are read."""

import pytest
from layouts import EIGHT_LAYERS, plan_of

from lt_shared.console import BadConfig, UsageError

PP2 = ("--pipeline-model-parallel-size", "2")
PP4 = ("--pipeline-model-parallel-size", "4")
VPP2 = ("--num-virtual-stages-per-pipeline-rank", "2")
TP2 = ("--tensor-model-parallel-size", "2")
ZERO_BUBBLE = ("--pipeline-schedule", "zero-bubble")
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"

REFUSED = {
    "stages without a pipeline": (VPP2, "needs a pipeline parallel size above 1"),
    "stages that do not divide": (
        (*PP2, "--num-virtual-stages-per-pipeline-rank", "3"),
        "pipeline parallel size 2 x 3 virtual",
    ),
    "layers per stage": ((*PP2, "--num-layers-per-virtual-pipeline-stage", "3"), "do not divide into stages of 3"),
    "micro batches of stages": (
        (*PP4, *VPP2, "--global-batch-size", "6"),
        "6 micro batches a step do not divide",
    ),
    "first rank too large": ((*PP2, FIRST, "9"), "8 layers do not divide"),
    "nothing between": ((*PP4, FIRST, "4", LAST, "4"), "8 layers do not divide among 4 pipeline ranks"),
    "rest does not divide": ((*PP4, FIRST, "1"), "layers 7 not divisible by pipeline parallel size 3"),
    "first rank's stages": ((*PP2, *VPP2, FIRST, "3"), "3 layers of the first or last pipeline rank do not divide into 2"),
    "sequence by chunks": (("--context-parallel-size", "3"), "64 not divisible by 2 x context parallel size 3"),
    "chunks by tensor": (
        (*TP2, "--context-parallel-size", "2", "--sequence-parallel", "--seq-length", "68", "--tensor-model-parallel-size", "4"),
        "not divisible by tensor parallel size 4",
    ),
    "ranks by context": (("--context-parallel-size", "2", "--ranks", "3"), "3 ranks do not divide into tensor parallel 1"),
    "overlap on a CPU": ((*TP2, "--sequence-parallel", "--tp-comm-overlap"), "does not support --device cpu"),
    "overlap without sequence parallelism": ((*TP2, "--tp-comm-overlap"), "needs sequence parallelism"),
    "zero-bubble without a pipeline": (ZERO_BUBBLE, "zero-bubble needs a pipeline parallel size above 1"),
    "tied predictions in a pipeline": ((*PP2, "--mtp-num-layers", "1"), "tied embeddings has other gradients in a pipeline"),
    "zero-bubble of several stages": ((*PP2, *VPP2, *ZERO_BUBBLE), "zero-bubble interleaves no stages"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_layouts(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(BadConfig, match=message):
        plan_of([*EIGHT_LAYERS, "--num-query-groups", "4", *options])


@pytest.mark.parametrize(
    ("heads", "groups", "hint"),
    [("8", "4", "choose 1, 2, 4 or 8"), ("8", "1", "choose 1, 2, 4 or 8"), ("16", "16", "choose 1, 2, 4, 8 or 16")],
)
def test_what_divides_the_model_is_named(heads: str, groups: str, hint: str) -> None:
    sizes = ("--num-attention-heads", heads, "--num-query-groups", groups, "--hidden-size", "64", "--ffn-hidden-size", "192")
    with pytest.raises(BadConfig) as caught:
        plan_of([*EIGHT_LAYERS, *sizes, "--tensor-model-parallel-size", "3", "--ranks", "3"])
    assert caught.value.hint == hint


def test_stages_by_their_number_or_by_their_layers() -> None:
    def stages(*options: str) -> int | None:
        return plan_of([*EIGHT_LAYERS, *options]).parallelism.interleaving

    assert stages(*PP2) is None
    assert stages(*PP2, *VPP2) == 2
    assert stages(*PP2, "--num-layers-per-virtual-pipeline-stage", "1") == 4
    # One stage a rank is the ordinary schedule.
    assert stages(*PP2, "--num-layers-per-virtual-pipeline-stage", "4") is None
    with pytest.raises(UsageError):
        stages(*PP2, *VPP2, "--num-layers-per-virtual-pipeline-stage", "2")
    with pytest.raises(UsageError):
        stages(*PP2, "--num-layers-per-virtual-pipeline-stage", "2", FIRST, "2")


def test_ranks_follow_the_layout() -> None:
    plan = plan_of([*EIGHT_LAYERS, *TP2, *PP2, "--context-parallel-size", "2"])
    assert (plan.parallelism.world_size, plan.parallelism.data) == (8, 1)
    assert plan_of([*EIGHT_LAYERS, "--context-parallel-size", "2", "--ranks", "4"]).parallelism.data == 2


def test_the_layout_in_words() -> None:
    def words(*options: str) -> str:
        return plan_of([*EIGHT_LAYERS, *options]).parallelism.described

    assert words() == "tensor 1 x pipeline 1 x data 1"
    assert words(*PP2, *VPP2, "--context-parallel-size", "2") == "tensor 1 x pipeline 2 (2 stages each) x context 2 x data 1"
