"""Optimizer steps taken apart: skipped ones, the loss scale of fp16, weight decay, schedules, z-loss, fp8 GEMMs."""

import math
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import steps_by_hand
import torch

from lt_shared.contracts.manifest import Dataset
from lt_train.optim.optimizer import loss_scale

Results = dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Results:
    return steps_by_hand.results(tmp_path_factory.mktemp("steps"), dataset.prefix)


@pytest.mark.parametrize("form", ["fp32", "bf16", "distributed", "unclipped"])
def test_a_nan_on_one_rank_changes_no_weight_anywhere(form: str, results: Results) -> None:
    outcome = results["not_a_number"][form]
    assert outcome["updated"] == [True, False, True]
    assert outcome["bad"] == [True, False], "the loss is NaN, the norm is not finite"
    assert outcome["changed"] == []
    assert outcome["kept_schedule"]
    assert outcome["changed_later"]
    assert math.isfinite(outcome["good_loss"])
    assert outcome["consumed"] == 3 * steps_by_hand.BATCH, "the samples of the skipped step are not seen again"


def test_fp16_finds_its_loss_scale(results: Results) -> None:
    outcome = results["loss_scaling"]
    assert outcome["updated"][0] is False
    assert outcome["scales"][0] == steps_by_hand.FIRST_SCALE / 2
    scales = [steps_by_hand.FIRST_SCALE, *outcome["scales"]]
    good_in_a_row = 0
    for before, after, updated in zip(scales, scales[1:], outcome["updated"], strict=False):
        good_in_a_row = good_in_a_row + 1 if updated else 0
        doubled = good_in_a_row == 3
        good_in_a_row = 0 if doubled else good_in_a_row
        assert after == (before / 2 if not updated else before * 2 if doubled else before)
    assert sum(outcome["updated"]) > 5
    assert outcome["schedule"] == steps_by_hand.BATCH * sum(outcome["updated"]), "a skipped step does not move the schedule"


def test_a_fixed_loss_scale_stays_and_changes_nothing(results: Results) -> None:
    outcome = results["loss_scaling"]
    assert outcome["fixed_scales"] == [1024.0] * 3
    assert outcome["fixed_losses"] == pytest.approx(outcome["fp32_losses"], abs=1e-3)


def test_the_smallest_loss_scale_falls_no_further(results: Results) -> None:
    assert results["loss_scaling"]["falls"] == [False, False]


def test_losses_that_are_not_scaled_have_no_scale_to_read_from_the_device() -> None:
    """The host would wait for the update: reading a tensor on this device raises."""
    away = torch.ones(1, device="meta")
    plain: Any = SimpleNamespace(grad_scaler=None, get_loss_scale=lambda: away)
    chained: Any = SimpleNamespace(chained_optimizers=[plain, plain], get_loss_scale=plain.get_loss_scale)
    assert loss_scale(plain) == loss_scale(chained) == 1
    scaled: Any = SimpleNamespace(grad_scaler=SimpleNamespace(), get_loss_scale=lambda: torch.tensor([8.0]))
    assert loss_scale(scaled) == 8


def test_rates_and_first_weights_follow_the_width(results: Results) -> None:
    """Four times the base width. The first step of AdamW changes a weight by its rate, if its gradient is well above epsilon."""
    plain, scaled = results["width_transfer"]["steps"]["plain"], results["width_transfer"]["steps"]["mup"]
    assert plain.keys() == scaled.keys()
    for name in plain:
        is_layer_matrix = "linear_" in name and "norm" not in name
        assert scaled[name][1] == pytest.approx(0.0025 if is_layer_matrix else 0.01, rel=0.01), name
        assert plain[name][1] == pytest.approx(0.01, rel=0.01), name
        assert scaled[name][0] == pytest.approx(plain[name][0] / (2 if is_layer_matrix else 1), rel=1e-6), name


def test_activations_change_alike_in_all_widths(results: Results) -> None:
    """The coordinate check of muP: by the same steps, without it, the outputs of a wider model change more."""
    sizes = results["width_transfer"]["sizes"]
    growth = {name: [wide / narrow for narrow, wide in zip(*widths.values(), strict=True)] for name, widths in sizes.items()}
    assert all(0.6 < ratio < 1.6 for ratio in growth["mup"]), growth
    assert all(ratio > 2 for ratio in growth["plain"]), growth


@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_norms_and_biases_have_no_weight_decay(family: str, results: Results) -> None:
    for step in results["weight_decay"][family]:
        spared = {name for name, decay in step.items() if decay == 1.0}
        assert spared == {name for name in step if "norm" in name or name.endswith("bias")}
        assert [decay for name, decay in step.items() if name not in spared] == pytest.approx([0.95] * (len(step) - len(spared)))
    assert spared


def test_weight_decay_rises(results: Results) -> None:
    first, second = (step["embedding.word_embeddings.weight"] for step in results["weight_decay"]["rising"])
    # After one step of 100 it is 1% of the way from 0 to 1; the learning rate is 0.1.
    assert (first, second) == (1.0, pytest.approx(1 - 0.1 * 0.01))


def test_learning_rates_follow_their_formulas(results: Results) -> None:
    def expected(style: str, step: int) -> float:
        if step <= 10:
            return 0.05 + 0.95 * step / 10
        fraction = (step - 10) / 90
        return {
            "cosine": 0.1 + 0.9 * (1 + math.cos(math.pi * fraction)) / 2,
            "linear": 0.1 + 0.9 * max(0.0, 1 - (step - 10) / 70),
            "constant": 1.0,
            "inverse-square-root": math.sqrt(10 / step),
            "WSD": 0.1 + 0.9 * min(1.0, (100 - step) / 20),
        }[style]

    assert len(results["schedules"]) == 5
    for style, rates in results["schedules"].items():
        assert rates == pytest.approx([expected(style, step) for step in range(100)]), style


def test_two_runs_with_one_seed_are_identical(results: Results) -> None:
    outcome = results["repeated"]
    assert outcome["first"] == outcome["second"]
    assert outcome["first"] != outcome["other"]


@pytest.mark.parametrize("ranks", ["1 ranks", "2 ranks"])
def test_z_loss_has_the_gradient_of_its_formula_and_is_not_reported(ranks: str, results: Results) -> None:
    outcome = results["z_loss"][ranks]
    assert outcome["loss"] < 1e-6
    assert outcome["gradient"] < 1e-6 * outcome["size"] + 1e-7


def test_muon_is_the_same_in_every_layout_or_refused_by_version(results: Results) -> None:
    outcome = results["muon"]
    if tuple(map(int, version("megatron-core").split(".")[:2])) < (0, 19):
        assert outcome["refused"] == f"Muon is there from megatron-core 0.19 on, this is {version('megatron-core')}"
        return
    assert outcome["refused"] is None
    # Muon's iteration rounds to less than fp32.
    assert outcome["tp2"] == pytest.approx(outcome["dp2"], abs=1e-4)
    assert outcome["dp2"] != outcome["adam"]
    assert len(outcome["errors"]) == 8
    assert max(outcome["errors"]) < 2e-2
    # megatron-core's Muon has one by one as a matrix each.
    for place, losses in outcome["experts"].items():
        assert losses == pytest.approx(outcome["experts"]["one by one"], abs=2e-4), place


def test_fused_layers_split_between_ranks_compute_the_whole_ones(results: Results) -> None:
    """The output layer with its loss, in fp32, and the MLP with SwiGLU, in fp64."""
    for layer, errors in results["fused_layers"].items():
        for name, error in errors.items():
            assert error < (1e-5 if layer.startswith("output") else 1e-12), (layer, name)


def test_linear_layers_that_exchange_rows_train_as_megatrons_do(results: Results) -> None:
    outcome = results["overlapped"]
    # Four in each of two layers.
    assert outcome["overlapping"] == [0, 8]
    assert outcome["found"] == pytest.approx(outcome["expected"], abs=2e-3)


@pytest.mark.parametrize(("run", "tolerance"), [("fp32, own output layer", 5e-6), ("bf16, tied", 2e-2)])
def test_sharded_weights_train_with_the_kernels_of_a_gpu(run: str, tolerance: float, results: Results) -> None:
    """SwiGLU and the loss are parts of GEMMs that multiply by gathered weights, whose gradients go back to FSDP."""
    outcome = results["sharded"][run]
    assert outcome["found"] == pytest.approx(outcome["expected"], abs=tolerance)
    assert len(set(outcome["found"])) == 2
    assert outcome["hooks"] == 0


@pytest.mark.parametrize("model", ["own output layer, recomputed", "tied, experts"])
def test_shards_read_out_of_other_ranks_memory_are_those_gathered(model: str, results: Results) -> None:
    """In every bit: the same numbers are sent, and summed in the same order."""
    outcome = results["peers"][model]
    assert outcome["symmetric-memory"] == outcome["torch"]
    # The ranks evaluate the batch of the next step.
    assert len(set(outcome["torch"])) == 5


@pytest.mark.parametrize("layout", ["alone", "tp2", "tp2-sp"])
@pytest.mark.parametrize("form", ["e4m3", "hybrid"])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"][: 1 + steps_by_hand.ROWWISE])
def test_fp8_products_are_near_the_exact_ones(recipe: str, form: str, layout: str, results: Results) -> None:
    """An e4m3 number has 3 bits after the point: errors of up to 6%, 2.5% on the average, from each factor; e5m2 has 2 bits."""
    errors = results["fp8_products"][f"{recipe} {form} {layout}"]
    assert 0.01 < errors.pop("output") < 0.07
    for name, error in errors.items():
        assert 0.01 < error < (0.07 if form == "e4m3" else 0.1), name


@pytest.mark.parametrize("form", ["e4m3", "hybrid"])
def test_rows_may_be_cast_before_they_are_gathered(form: str, results: Results) -> None:
    """With the scale of all ranks' rows: to the same numbers. Triton's interpreter rounds casts towards zero, alike in both."""
    before, behind = (results["fp8_products"][f"triton {form} {name}"] for name in ("symmetric-memory", "torch"))
    assert before == pytest.approx(behind, rel=1e-2)


def test_the_loss_is_a_mean_over_the_tokens_of_a_global_batch(results: Results) -> None:
    """A rank whose tokens do not count halves the mean of the micro batches' means; it leaves the mean of the tokens alone."""
    step = results["token_average"]
    (mean, _), (half, half_norm) = step["micro batches 1.0"], step["micro batches 0.0"]
    first, last = 2 * half, 2 * (mean - half)
    assert step["tokens 1.0"] == pytest.approx(step["micro batches 1.0"], rel=1e-6)
    assert step["tokens 0.0"] == pytest.approx([first, 2 * half_norm], rel=1e-6)
    assert step["micro batches 0.5"][0] == pytest.approx(mean, rel=1e-6)
    assert step["tokens 0.5"][0] == pytest.approx((first + last / 2) / 1.5, rel=1e-6)


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss", "drop probs", "drop position"])
def test_the_router_is_trained_and_limited_by_the_formulas_of_the_papers(results: Results, kind: str) -> None:
    assert results["expert_routing"][kind] < 1e-5
