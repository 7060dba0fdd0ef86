"""The losses of a run do not depend on how the ranks share the model and the data."""

import math
from importlib.metadata import version

import pytest
from layouts import Outcome, sampled, train_all
from running import BRIEF, BRIEF_LOSSES

from lt_shared.contracts.manifest import Dataset

# All runs do the same sums in another order. In fp32 one rounding is 6e-8 of a loss near 7.6, that is 5e-7; the optimizer's steps
# amplify it a little. A wrong gradient norm, a lost gradient or other data differ from the first or second step by 1e-4 and more.
TOLERANCE = 5e-6
RANKS = 4

SMALL = (
    *("--model", "tiny", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--num-attention-heads", "8", "--num-query-groups", "4", *BRIEF),
)
# As many as four stages have: ranks that share a layer exchange something a dozen times in each, on cores that others use.
DEEP = ("--num-layers", "4")
# With it, pipelines of four stages are filled, and ranks that share a batch have several micro batches.
ONE = ("--micro-batch-size", "1")
GPT = ("--model", "gpt3-1.7b", "--init-method-std", "0.02")
TP2 = ("--tensor-model-parallel-size", "2")
TP4 = ("--tensor-model-parallel-size", "4")
PP2 = ("--pipeline-model-parallel-size", "2")
PP4 = ("--pipeline-model-parallel-size", "4")
CP2 = ("--context-parallel-size", "2")
CP4 = ("--context-parallel-size", "4")
EP2 = ("--expert-model-parallel-size", "2")
SP = ("--sequence-parallel",)
WIDE = ("--use-mup", "--mup-base-hidden-size", "32", "--mup-embedding-mult", "2", "--mup-output-mult", "2")
VPP2 = ("--num-virtual-stages-per-pipeline-rank", "2")
ZERO = ("--use-distributed-optimizer",)
DP2 = ("--ranks", "2", *ONE)
DP4 = ("--ranks", "4", *ONE)

# Each family is compared with its own run on one rank.
FAMILIES = {
    "llama": (),
    "deep": DEEP,
    "gpt": GPT,
    "vocabulary": ("--vocab-size", "2100"),
    "documents": ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss"),
    "learned": (*GPT, "--reset-attention-mask", "--reset-position-ids"),
    "window": ("--window-size", "20,0"),
    # Width transfer: groups of parameters with rates of their own.
    "wide": (*WIDE, *DEEP),
    # More tensor-parallel ranks than query groups: ranks share keys and values.
    "shared": ("--num-query-groups", "2"),
    "single": ("--num-query-groups", "1", "--qk-layernorm"),
    # Keys are normalized over all heads.
    "olmo": ("--model", "tiny-olmo2", "--num-query-groups", "2"),
    "experts": ("--num-experts", "4", "--moe-aux-loss-coeff", "0.1", *ONE),
    # With four experts a token, four ranks send each other whole tokens; with two, megatron-core sends copies.
    "many": ("--num-experts", "8", "--moe-router-topk", "4", "--moe-aux-loss-coeff", "0.1", *ONE),
    # Experts with biases, which tensor-parallel ranks do not split.
    "oss": ("--model", "tiny-gpt-oss", "--lr", "2e-3", *ONE),
}
LAYOUTS = sampled(
    {
        "tp2": TP2,
        "tp4-sp": (*TP4, *SP),
        "deep-pp4": (*PP4, *ONE),
        "deep-pp2-uneven": (*PP2, "--decoder-first-pipeline-num-layers", "3", *ONE),
        "deep-pp2-vpp2-layout": (*PP2, "--pipeline-model-parallel-layout", "E|t|ttt|L", *ONE),
        "deep-pp2-loss": (*PP2, "--pipeline-model-parallel-layout", "Et*4|L", *ONE),
        "deep-pp2-vpp2-dp2-zero": (*PP2, *VPP2, *ZERO, "--overlap-grad-reduce", "--overlap-param-gather", *DP4),
        "deep-pp2-vpp2-tp2-sp": (*PP2, *VPP2, *TP2, *SP, *ONE),
        "dp2": DP2,
        "dp4-zero": (*DP4, *ZERO),
        "tp2-sp-dp2-zero": (*TP2, *SP, *ZERO, *DP4),
        "cp4": CP4,
        "deep-cp2-pp2-vpp2": (*CP2, *PP2, *VPP2),
        "cp2-dp2-zero": (*CP2, *ZERO, *DP4),
        "shared-tp4-sp": (*TP4, *SP),
        "single-tp2-cp2": (*TP2, *CP2),
        "single-tp2-pp2-sp-zero": (*TP2, *PP2, *SP, *ZERO),
        "olmo-tp4": TP4,
        "wide-tp2-pp2-sp-zero": (*TP2, *PP2, *SP, *ZERO),
        "gpt-tp2-pp2-sp": (*TP2, *PP2, *SP),
        # 2,100 tokens are padded to 2,176 rows on one rank and to 2,304 on two.
        "vocabulary-tp2": TP2,
        "documents-pp2": PP2,
        "documents-cp2-tp2-sp": (*CP2, *TP2, *SP),
        "documents-cp2-recompute": (*CP2, "--recompute-granularity", "full"),
        "learned-cp2": CP2,
        "window-cp2-tp2-sp": (*CP2, *TP2, *SP),
        "experts-ep2-dp4-zero": (*EP2, *DP4, *ZERO),
        "experts-ep2-tp2-sp": (*EP2, *TP2, *SP, "--ranks", "4", "--moe-token-dispatcher-type", "allgather"),
        "experts-ep2-pp2-zero": (*EP2, *PP2, *ZERO, "--ranks", "4"),
        "experts-ep2-cp2": (*EP2, *CP2, *DP2),
        "oss-ep2-tp2-sp": (*EP2, *TP2, *SP, *DP4),
        "many-ep4-zero": ("--expert-model-parallel-size", "4", *ZERO, *DP4),
        "experts-ep4-zero": ("--expert-model-parallel-size", "4", *ZERO, *DP4),
    }
)


def family_of(layout: str) -> str:
    first = layout.split("-")[0]
    return first if first in FAMILIES else "llama"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    place = tmp_path_factory.mktemp("layouts")
    data = ("--data-cache-path", str(place / "cache"), dataset.prefix)
    commands = {f"{family}-alone": (*SMALL, *options, *data) for family, options in FAMILIES.items()}
    for layout, options in LAYOUTS.items():
        commands[layout] = (*SMALL, *FAMILIES[family_of(layout)], *options, *data)
    return train_all(commands, place, RANKS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_equal_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    alone, found = outcomes[f"{family_of(layout)}-alone"], outcomes[layout]
    assert alone.error is None, alone.error
    assert found.error is None, found.error
    assert found.losses.keys() == BRIEF_LOSSES
    assert found.losses == pytest.approx(alone.losses, abs=TOLERANCE)
    assert min(alone.losses.values()) < alone.losses["step", 1] - 0.01


def test_padding_of_the_vocabulary_takes_no_part(outcomes: dict[str, Outcome]) -> None:
    """Near the start all tokens are equally likely: the loss tells how many take part."""
    assert outcomes["vocabulary-alone"].losses["step", 1] == pytest.approx(math.log(2100), abs=0.02)


def test_documents_change_the_losses(outcomes: dict[str, Outcome]) -> None:
    whole, apart = outcomes["llama-alone"].losses, outcomes["documents-alone"].losses
    assert abs(whole["step", 2] - apart["step", 2]) > 1e-4


def test_checkpoints_move_between_layouts(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> None:
    """One step each under interleaved stages, context parallelism, on ranks that share keys and values, and on one rank.

    The groups of parameters have rates of their own (muP), which each attempt finds again.
    """
    place = tmp_path_factory.mktemp("moves")
    data = ("--data-cache-path", str(place / "cache"), dataset.prefix)
    four = (*SMALL, *DEEP, *WIDE, "--num-query-groups", "1", "--train-iters", "4", *data)
    commands = {
        "alone": four,
        "stages": (*four, *PP2, *VPP2, "--exit-interval", "1"),
        "context": (*four, *CP2, "--load", str(place / "stages"), "--exit-interval", "2"),
        "shared": (*four, *TP2, *SP, "--load", str(place / "context"), "--exit-interval", "3"),
        "one": (*four, "--load", str(place / "shared")),
    }
    found = train_all(commands, place, 2, saving=["stages", "context", "shared"])
    assert not [outcome.error for outcome in found.values() if outcome.error]
    alone = found.pop("alone").losses
    keys = [key for outcome in found.values() for key in outcome.losses]
    assert keys == [("step", 1), ("step", 2), ("step", 3), ("step", 4), ("eval", 4)]
    for outcome in found.values():
        assert outcome.losses == pytest.approx({key: alone[key] for key in outcome.losses}, abs=TOLERANCE)


# The first layer is dense: the first of two stages has no experts.
MUON = (
    *(*BRIEF, "--optimizer", "muon", "--model", "tiny-deepseek-v2", "--num-layers", "3"),
    *("--micro-batch-size", "1", "--train-iters", "3", "--lr", "2e-3"),
)
DENSE_STAGE = (*PP2, "--decoder-first-pipeline-num-layers", "1")


@pytest.mark.skipif(not version("megatron-core").startswith("0.19"), reason="Muon is there from megatron-core 0.19 on")
def test_checkpoints_of_muon_move_between_layouts(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> None:
    place = tmp_path_factory.mktemp("muon")
    data = ("--data-cache-path", str(place / "cache"), dataset.prefix)

    def go_on(name: str, *options: str) -> tuple[str, ...]:
        return (*MUON, *options, "--load", str(place / name), *data)

    commands = {
        "alone": (*MUON, *data),
        "split": (*MUON, *TP2, *SP, "--exit-interval", "1", *data),
        "stages": go_on("split", *DENSE_STAGE, "--exit-interval", "2"),
        "one": go_on("stages"),
        "half": (*MUON, "--bf16", *EP2, *DP2, "--exit-interval", "1", *data),
        "half-stages": go_on("half", "--bf16", *DENSE_STAGE),
        "adam": go_on("split", "--optimizer", "adam"),
    }
    found = train_all(commands, place, 2, saving=["split", "stages", "half"])
    alone = found["alone"].losses
    for name in ("split", "stages", "one"):
        # Muon's iteration rounds to 16 bits.
        assert found[name].losses == pytest.approx({key: alone[key] for key in found[name].losses}, abs=2e-4), name
    for name in ("half", "half-stages"):
        assert found[name].losses == pytest.approx({key: alone[key] for key in found[name].losses}, abs=3e-3), name
    assert ("step", 3) in found["one"].losses.keys() & found["half-stages"].losses.keys()
    assert "other groups of parameters" in str(found["adam"].error)
