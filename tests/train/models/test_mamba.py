"""Mamba-2 layers, layers of one part, and Mamba-2 beside attention: layouts, costs and parameters."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from layouts import Outcome, check_losses_of_one_rank, sampled, train_variants
from reserved_ports import free_port
from running import BRIEF, environment

from lt_shared.console import BadConfig
from lt_shared.contracts.manifest import Dataset
from lt_shared.models.architecture import Mamba
from lt_shared.models.presets import preset
from lt_train.config.settings import parallelism
from lt_train.config.settings.parallelism import Parallelism
from lt_train.ops.mamba_scan import CHUNK
from lt_train.planner import mixer_costs, stage_work
from lt_train.planner.rank_parameters import layer_parameters, stage_parameters

TINY, MIXTURE = preset("tiny-nemotron-h"), preset("tiny-nemotron-h-moe")
# Samples longer than a chunk.
TRAINING = ("--hidden-size", "64", *BRIEF, "--seq-length", "96")
DOCUMENTS = ("--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
SPLIT = ("--tensor-model-parallel-size", "2", "--sequence-parallel")
STAGES = ("--pipeline-model-parallel-size", "2")
DENSE, EXPERTS, SIDE = ("--model", TINY.name), ("--model", MIXTURE.name), ("--model", "tiny-falcon-h1")
LAYOUTS = sampled(
    {
        "dense-tp2": (*DENSE, "--tensor-model-parallel-size", "2"),
        "dense-pp2": (*DENSE, *STAGES),
        "dense-fsdp2": (*DENSE, "--ranks", "2", "--use-torch-fsdp2"),
        "dense-overlapped": (*DENSE, "--ranks", "2", "--use-distributed-optimizer", "--overlap-grad-reduce"),
        "dense-recomputed": (
            *DENSE,
            *("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
        ),
        "dense-resumed": (*DENSE, "--load", "stopped"),
        "dense-hybrid": (*DENSE, "--load", "stopped-hybrid"),
        "moe-sp2": (*EXPERTS, *SPLIT),
        "moe-ep2": (*EXPERTS, "--expert-model-parallel-size", "2", "--ranks", "2"),
        "documents-sp2": (*DENSE, *DOCUMENTS, *SPLIT),
        "side-sp2": (*SIDE, *SPLIT),
        "side-pp2": (*SIDE, *STAGES),
        "side-fsdp2": (*SIDE, "--ranks", "2", "--use-torch-fsdp2"),
        "side-resumed": (*SIDE, "--load", "stopped-side"),
    },
    "dense-tp2",
    "dense-pp2",
    "dense-resumed",
    "moe-ep2",
    "documents-sp2",
    "side-sp2",
)
RESUMED = ("dense-resumed", "dense-hybrid", "side-resumed")
STOPPED = {
    "stopped": (*DENSE, "--exit-interval", "1"),
    "stopped-side": (*SIDE, "--exit-interval", "1"),
    "stopped-hybrid": (*DENSE, "--exit-interval", "1", "--ckpt-layout", "hybrid"),
}
ALONE = {"dense-alone": DENSE, "moe-alone": EXPERTS, "side-alone": SIDE, "documents-alone": (*DENSE, *DOCUMENTS)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> dict[str, Outcome]:
    place = tmp_path_factory.mktemp("runs")
    return train_variants(TRAINING, {**ALONE, **STOPPED, **LAYOUTS}, dataset.prefix, place, stopped=list(STOPPED))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in RESUMED])
def test_every_layout_has_the_losses_of_one_rank(layout: str, outcomes: dict[str, Outcome]) -> None:
    check_losses_of_one_rank(outcomes, layout, f"{layout.split('-')[0]}-alone")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name in RESUMED])
def test_a_resumed_run_has_the_same_bits(layout: str, outcomes: dict[str, Outcome]) -> None:
    """Also from a checkpoint with the layers of megatron-core's HybridModel."""
    assert outcomes[layout].error is None
    stopped, alone = ("stopped-side", "side-alone") if layout == "side-resumed" else ("stopped", "dense-alone")
    assert outcomes[stopped].losses | outcomes[layout].losses == outcomes[alone].losses


def mamba_of_tiny() -> Mamba:
    assert TINY.mamba is not None
    return TINY.mamba


def test_the_planner_counts_each_layer() -> None:
    """M-M*M-, with 8 heads of 16 channels in 2 groups, and states of 32 x 16 numbers."""
    layers = stage_work.model_work(TINY, 64, None).layers
    hidden = TINY.hidden_size
    assert layers[0] == layers[2] == layers[4]
    assert layers[1] == layers[5] != layers[3]
    # Gates and values of 128 channels each, B and C of 64, 8 steps; 4 taps for 256 channels; an output of 128.
    weights = hidden * (2 * 128 + 2 * 64 + 8) + 4 * 256 + 128 * hidden
    assert layers[0].weights == 2 * weights
    assert layers[0].forward == 2 * weights + 7 * 128 * 32
    assert layers[1].weights == 2 * 2 * hidden * TINY.ffn_hidden_size
    vectors = 6 * hidden + 3 * (3 * 8 + 128 + 256)
    assert sum(TINY.vectors(layer, 0) for layer in range(6)) == vectors
    assert mixer_costs.CHUNK == CHUNK


def test_parameters_of_a_rank() -> None:
    pipeline = Parallelism("cpu", 2, 1, 2, False, False)
    assert sum(sum(stage_parameters(MIXTURE, pipeline, rank)) for rank in range(2)) == MIXTURE.parameters()
    for layer in range(6):
        whole, half = (sum(layer_parameters(TINY, Parallelism("cpu", 2, ranks, 1, ranks > 1, False), layer)) for ranks in (1, 2))
        # The norm in front of the layer is whole on both ranks.
        assert 2 * half - whole == TINY.hidden_size


def test_layouts_without_the_layer_are_refused() -> None:
    problems = [str(error) for error in parallelism.check(Parallelism("cpu", 4, 4, 1, True, False), TINY, 64)]
    assert "groups of Mamba heads 2 not divisible by tensor parallel size 4" in "".join(problems)


@pytest.mark.parametrize(
    ("mamba", "mlps", "message"),
    [
        ((0, 1, 2, 3, 4, 5), (), "leave one for attention"),
        ((6,), (), "a model of 6 layers"),
        ((0, 1), (1, 2), "an MLP alone in [1, 2]"),
        ((0,), (6,), "an MLP alone in the layers [6]"),
        ((0,), (2, 1), "ascending order"),
    ],
)
def test_layers_that_a_model_cannot_have(mamba: tuple[int, ...], mlps: tuple[int, ...], message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        dataclasses.replace(TINY, mamba=dataclasses.replace(mamba_of_tiny(), layers=mamba), mlp_layers=mlps)
    assert message in f"{caught.value} {caught.value.hint}"


def test_one_part_layers_need_mamba() -> None:
    with pytest.raises(BadConfig, match="layers of a mixer or an MLP alone"):
        dataclasses.replace(TINY, mamba=None)


def test_megatron_core_computes_and_stores_the_same() -> None:
    """The mixer of the installed megatron-core, but for mamba-ssm's kernels, with samples longer than two chunks."""
    script = Path(__file__).parents[1] / "mamba_of_megatron.py"
    command = [sys.executable, script, str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["same_shards"]
    assert results["output"] < 2e-5
    assert len(results["gradients"]) == 8
    assert max(results["gradients"].values()) < 5e-5
