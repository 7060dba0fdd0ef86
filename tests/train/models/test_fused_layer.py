"""Training with the kernels beside training without them, in Triton's interpreter."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stored
import torch
from layouts import Outcome, sampled, train_all

from lt_train.models.mlps.mlp import GatedGemmMLP
from lt_train.models.output import OutputLayer
from lt_train.models.transformer_config import accumulates_in_gemms
from lt_train.ops import fused_linear_cross_entropy, fused_swiglu_mlp
from lt_train.ops.row_exchange import OneRank

SMALL = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "100", "--seq-length", "8"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "2", "--lr", "1e-2", "--log-interval", "1"),
    *("--eval-iters", "0", "--device", "cpu"),
)
TRITON, TORCH = ("--kernels", "triton"), ("--kernels", "torch")
STOPPED = ("--exit-interval", "1")
EXPERTS = ("--num-experts", "4", "--moe-router-topk", "2")
# Of one micro batch a step: the interpreter is slow.
ONE = ("--global-batch-size", "1")
# Trained with the kernels and without; the losses fall by `fall` and are `tolerance` apart.
COMPARED = sampled(
    {
        # Roundings of float32 near 4 are 2.4e-7.
        "two micro batches a step": (("--train-iters", "3"), 0.01, 2e-6),
        # Steps this large enlarge every rounding: after 40, torch with MKL_CBWR=COMPATIBLE and without was 1.43e-5 apart,
        # and the kernels were 2.15e-6 from torch's build with CUDA (torch 2.13, megatron-core 0.19.2).
        "many steps": ((*ONE, "--train-iters", "12", "--vocab-size", "64"), 0.1, 2e-5),
        "experts": ((*ONE, *EXPERTS, "--moe-aux-loss-coeff", "0.3"), 0, 2e-6),
        "experts with biases": ((*ONE, "--model", "tiny-gpt-oss", "--moe-aux-loss-coeff", "0.3"), 0, 2e-6),
        # Rounding to 16 bits in other places; a step that is counted twice or never would show ten times that.
        "bf16": ((*ONE, "--bf16", "--use-distributed-optimizer"), 0, 1e-2),
    }
)
# The interpreter is slow, and AdamW takes gradients of other kernels' as well.
PLAIN_LOSS = ("--cross-entropy-impl", "torch")
PLAIN = (*PLAIN_LOSS, "--swiglu-impl", "torch")
# The optimizers have the parameters in another order, and may round the sum of squares to another norm, the last digit of which
# is in every clipped gradient.
UNCLIPPED = (*TRITON, "--bf16", "--clip-grad", "0")
ALONE = (*UNCLIPPED, *PLAIN, *ONE)
OPTIMIZERS = {"whole": (), "split": ("--use-distributed-optimizer",)}
CHANGES = sampled({f"{first} to {second}": (first, second) for first in OPTIMIZERS for second in reversed(OPTIMIZERS)}).values()
SHARDED = (*TRITON, *PLAIN, "--bf16", "--use-torch-fsdp2", "--ranks", "2", *EXPERTS)
# Without clipping: buckets of another size split the sum of squares among ranks in another way.
SEPARATE = (*UNCLIPPED, *PLAIN_LOSS, "--use-distributed-optimizer", "--ranks", "2", "--eval-iters", "1")
OVERLAPPED = (*SEPARATE, "--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "1000")
# The first run evaluates and saves between its two steps; in the second one, the second step follows the first at once.
MODELS = sampled(
    {
        "experts": (*EXPERTS, "--eval-interval", "1", "--save-interval", "1"),
        "dense": ("--eval-interval", "2", "--save-interval", "2"),
    }
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def outcomes(place: Path) -> dict[str, Outcome]:
    # The first of two ranks saves before the second looks for what it resumes from: other runs are between.
    saving = {"shards, stopped": (*SHARDED, *STOPPED), "shards": SHARDED}
    for name, options in OPTIMIZERS.items():
        saving |= {name: (*ALONE, *options), f"{name}, stopped": (*ALONE, *options, *STOPPED)}
    for first, second in CHANGES:
        saving[f"{first} to {second}"] = (*ALONE, *OPTIMIZERS[second], "--load", f"{place}/{first}, stopped")
    for name, model in MODELS.items():
        saving |= {f"{name}, separate": (*SEPARATE, *model), f"{name}, overlapped": (*OVERLAPPED, *model)}
    saving["shards, resumed"] = (*SHARDED, "--load", f"{place}/shards, stopped")
    runs = {f"{name}, torch": (*TORCH, *options) for name, (options, *_) in COMPARED.items()}
    runs |= {f"{name}, triton": (*TRITON, *options) for name, (options, *_) in COMPARED.items()}
    return train_all({name: (*SMALL, *options) for name, options in (runs | saving).items()}, place, 2, saving=saving)


@pytest.mark.parametrize("name", COMPARED)
def test_losses_are_those_without_kernels(name: str, outcomes: dict[str, Outcome]) -> None:
    options, fall, tolerance = COMPARED[name]
    expected = outcomes[f"{name}, torch"].losses
    assert outcomes[f"{name}, triton"].losses == pytest.approx(expected, abs=tolerance)
    losses = list(expected.values())
    assert len(set(losses)) == int(options[options.index("--train-iters") + 1] if "--train-iters" in options else 2)
    assert losses[-1] < losses[0] - fall or not fall


def assert_same_state(found: Path, expected: Path, weight: str) -> None:
    """Every bit of the float32 weights and of the moments, which are saved under names that go by the optimizer."""
    tensors, others = stored.tensors(expected / "iter_0000002"), stored.tensors(found / "iter_0000002")
    names = [name for name in tensors if name.startswith("optimizer.state.")]
    assert any("param." in name and weight in name for name in names)
    for name in names:
        assert torch.equal(others[name], tensors[name]), name


@pytest.mark.parametrize(("first", "second"), CHANGES)
def test_fused_adamw_ends_with_the_weights_of_a_run_without_a_checkpoint(
    first: str, second: str, place: Path, outcomes: dict[str, Outcome]
) -> None:
    assert outcomes[f"{first} to {second}"].losses == {("step", 2): outcomes[second].losses["step", 2]}
    assert_same_state(place / f"{first} to {second}", place / second, "")


def test_fused_adamw_on_shards_goes_on_from_a_checkpoint(place: Path, outcomes: dict[str, Outcome]) -> None:
    """With experts' shards in an optimizer of their own."""
    assert outcomes["shards, stopped"].losses | outcomes["shards, resumed"].losses == outcomes["shards"].losses
    assert_same_state(place / "shards, resumed", place / "shards", "experts")


@pytest.mark.parametrize("model", MODELS)
def test_fused_adamw_overlaps_the_all_gather(model: str, place: Path, outcomes: dict[str, Outcome]) -> None:
    """The new weights are there when the next pass needs them, also when the run evaluates and saves between."""
    losses = outcomes[f"{model}, overlapped"].losses
    assert losses == outcomes[f"{model}, separate"].losses
    assert [step for _, step in losses] == ([1, 1, 2, 2] if model == "experts" else [1, 2, 2])
    separate, overlapped = (stored.tensors(place / f"{model}, {way}/iter_0000002") for way in ("separate", "overlapped"))
    for name, tensor in separate.items():
        assert torch.equal(tensor, overlapped[name]), name


def test_gated_mlp_waits_for_the_weights_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks of --overlap-param-gather run when a module is called; here its weight alone is used."""
    fc1, fc2 = torch.nn.Linear(2, 4, bias=False), torch.nn.Linear(2, 2, bias=False)
    for linear in (fc1, fc2):
        linear.register_forward_pre_hook(lambda module, inputs: module.weight.data.fill_(7))
    seen, told = [], {}
    monkeypatch.setattr(
        fused_swiglu_mlp, "gated_mlp", lambda rows, *others, **options: seen.extend(others[:2]) or told.update(options) or rows
    )
    layer: Any = SimpleNamespace(linear_fc1=fc1, linear_fc2=fc2, exchange=OneRank(), keeps_activation=True)
    GatedGemmMLP.forward(layer, torch.ones(1, 2))
    assert [bool(weight.eq(7).all()) for weight in seen] == [True, True]
    assert told == {"keeps_activation": True}


def fused_losses(hidden_states: Any, labels: torch.Tensor, weight: Any) -> torch.Tensor:
    layer = SimpleNamespace(cross_entropy="fused-linear", weight="own", exchange=OneRank(), vocab_size=2, fp8_losses=None)
    layer._fused_losses = partial(OutputLayer._fused_losses, layer)
    return OutputLayer.forward(layer, hidden_states, labels, weight)


def test_the_output_layer_leaves_its_gemm_to_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    losses = lambda *arguments: calls.append(arguments) or torch.arange(6.0)  # noqa: E731
    monkeypatch.setattr(fused_linear_cross_entropy, "output_losses", losses)
    hidden_states = torch.arange(12.0).view(3, 2, 2)
    labels = torch.tensor([[0, 1, 2], [3, 4, 5]])
    for weight, expected in ((None, "own"), ("embedding's", "embedding's")):
        result = fused_losses(hidden_states, labels, weight)
        rows, used, flat, *_ = calls.pop()
        assert used == expected
        assert torch.equal(rows, hidden_states.view(6, 2))
        assert flat.tolist() == [0, 3, 1, 4, 2, 5]
        assert result.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_only_contiguous_tensors_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    losses = lambda *arguments: calls.extend(arguments[:3]) or torch.zeros(3)  # noqa: E731
    monkeypatch.setattr(fused_linear_cross_entropy, "output_losses", losses)
    fused_losses(torch.zeros(3, 1, 8)[..., :4], torch.zeros(1, 6, dtype=torch.int64)[:, ::2], torch.zeros(2, 4))
    assert all(tensor.is_contiguous() for tensor in calls)


@pytest.mark.parametrize(
    ("half", "shards", "stages", "expected"),
    [
        *((True, False, 1, True), (True, True, 1, False), (False, False, 1, False)),
        *((False, False, 2, True), (False, True, 2, False)),
    ],
)
def test_where_gemms_add_their_gradients(half: bool, shards: bool, stages: int, expected: bool) -> None:
    precision: Any = SimpleNamespace(half=half)
    parallelism: Any = SimpleNamespace(pipeline=stages)
    memory: Any = SimpleNamespace(fully_sharded=shards)
    assert accumulates_in_gemms(precision, parallelism, memory) == expected
