"""Training with the kernels beside training without them, in Triton's interpreter."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import stored
import torch
from running import losses, train

from lt_shared.presets import preset
from lt_train.models import fused_layer
from lt_train.models.build_gpt import _accumulates_in_gemms
from lt_train.ops.row_exchange import OneRank

STEPS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "100", "--seq-length", "8"),
    *("--micro-batch-size", "1", "--global-batch-size", "2", "--train-iters", "4", "--lr", "1e-2", "--log-interval", "1"),
    *("--eval-iters", "0", "--device", "cpu", "--ranks", "1"),
)
TRITON, TORCH = ("--kernels", "triton"), ("--kernels", "torch")
BF16 = ("--bf16", "--use-distributed-optimizer")


def trained(save: Path, *arguments: str, code: int = 0) -> list[float]:
    """The losses of all steps."""
    result = train(*STEPS, *arguments, "--save", str(save))
    assert result.code == code, result.err
    return list(losses(save).values())


@pytest.mark.parametrize(
    ("options", "steps", "fall"),
    [
        ((), 4, 0.01),
        (("--train-iters", "40", "--lr", "1e-2", "--global-batch-size", "1", "--vocab-size", "64"), 40, 0.5),
    ],
    ids=["two micro batches a step", "forty steps"],
)
def test_losses_are_those_without_kernels(tmp_path: Path, options: tuple[str, ...], steps: int, fall: float) -> None:
    expected = trained(tmp_path / "torch", *TORCH, *options)
    # Roundings of float32 near 4 are 2.4e-7.
    assert trained(tmp_path / "triton", *TRITON, *options) == pytest.approx(expected, abs=2e-6)
    assert len(expected) == steps
    assert expected[-1] < expected[0] - fall


@pytest.mark.parametrize(
    "options", [("--num-experts", "4", "--moe-router-topk", "2"), ("--model", "tiny-gpt-oss")], ids=["plain", "with biases"]
)
def test_losses_of_experts_are_those_without_kernels(tmp_path: Path, options: tuple[str, ...]) -> None:
    balanced = (*options, "--moe-aux-loss-coeff", "0.3")
    expected = trained(tmp_path / "torch", *TORCH, *balanced)
    assert trained(tmp_path / "triton", *TRITON, *balanced) == pytest.approx(expected, abs=2e-6)
    assert len(set(expected)) == 4


def test_fused_adamw_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    expected = trained(tmp_path / "torch", *TORCH, *BF16)
    trained(tmp_path / "triton", *TRITON, *BF16, "--exit-interval", "2", code=75)
    # Rounding to 16 bits in other places; a step counted twice or never would show ten times that.
    assert trained(tmp_path / "triton", *TRITON, *BF16) == pytest.approx(expected, abs=1e-2)


OPTIMIZERS = {"whole": (), "split": ("--use-distributed-optimizer",)}


@pytest.fixture(scope="module")
def with_each_optimizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in bfloat16 with each of OPTIMIZERS, and one of half its steps."""
    place = tmp_path_factory.mktemp("optimizers")
    for name, options in OPTIMIZERS.items():
        trained(place / name, *TRITON, "--bf16", *options)
        trained(place / f"half {name}", *TRITON, "--bf16", *options, "--exit-interval", "2", code=75)
    return place


@pytest.mark.parametrize("first", OPTIMIZERS)
@pytest.mark.parametrize("second", OPTIMIZERS)
def test_fused_adamw_ends_with_the_weights_of_a_run_without_a_checkpoint(
    with_each_optimizer: Path, tmp_path: Path, first: str, second: str
) -> None:
    """In every bit of the float32 weights and of the moments, which are saved under names that go by the optimizer."""
    resumed = shutil.copytree(with_each_optimizer / f"half {first}", tmp_path / "resumed")
    trained(resumed, *TRITON, "--bf16", *OPTIMIZERS[second])
    expected, found = (stored.tensors(run / "iter_0000004") for run in (with_each_optimizer / second, resumed))
    names = [name for name in expected if name.startswith("optimizer.state.")]
    assert any("param." in name for name in names)
    for name in names:
        assert torch.equal(found[name], expected[name]), name


def test_fused_adamw_on_shards_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """In every bit, with experts' shards in an optimizer of their own."""
    sharded = (*TRITON, "--bf16", "--use-torch-fsdp2", "--ranks", "2", "--num-experts", "4", "--moe-router-topk", "2")
    whole = trained(tmp_path / "whole", *sharded)
    trained(tmp_path / "parts", *sharded, "--exit-interval", "2", code=75)
    assert trained(tmp_path / "parts", *sharded) == whole
    expected, found = (stored.tensors(tmp_path / run / "iter_0000004") for run in ("whole", "parts"))
    names = [name for name in expected if name.startswith("optimizer.state.")]
    assert any("param." in name and "experts" in name for name in names)
    for name in names:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("model", [(), ("--num-experts", "4", "--moe-router-topk", "2")], ids=["dense", "experts"])
def test_fused_adamw_overlaps_the_all_gather(tmp_path: Path, model: tuple[str, ...]) -> None:
    """The new weights are there when the next pass needs them, also when the run evaluates and saves between.

    Without clipping: buckets of another size split the sum of squares among ranks in another way.
    """
    common = (
        *TRITON,
        *BF16,
        *model,
        "--clip-grad",
        "0",
        "--ranks",
        "2",
        "--eval-iters",
        "1",
        "--eval-interval",
        "2",
        "--save-interval",
        "3",
    )
    overlap = ("--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "1000")
    expected = trained(tmp_path / "one", *common)
    assert trained(tmp_path / "other", *common, *overlap) == expected
    for name, tensor in stored.tensors(tmp_path / "one" / "iter_0000004").items():
        assert torch.equal(tensor, stored.tensors(tmp_path / "other" / "iter_0000004")[name]), name


def test_gated_mlp_waits_for_the_weights_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks of --overlap-param-gather run when a module is called; here its weight alone is used."""
    fc1, fc2 = torch.nn.Linear(2, 4, bias=False), torch.nn.Linear(2, 2, bias=False)
    for linear in (fc1, fc2):
        linear.register_forward_pre_hook(lambda module, inputs: module.weight.data.fill_(7))
    seen, told = [], {}
    monkeypatch.setattr(
        fused_layer, "gated_mlp", lambda rows, *others, **options: seen.extend(others[:2]) or told.update(options) or rows
    )
    mlp = SimpleNamespace(linear_fc1=fc1, linear_fc2=fc2)
    fused_layer._gated_mlp(mlp, OneRank(), torch.ones(1, 2), keeps_activation=True)
    assert [bool(weight.eq(7).all()) for weight in seen] == [True, True]
    assert told == {"keeps_activation": True}


def chosen(**parts: str) -> SimpleNamespace:
    """Everything by megatron-core, but for `parts`."""
    return SimpleNamespace(
        **{"layers": "torch", "norm": "torch", "rope": "torch", "swiglu": "torch", "cross_entropy": "torch"} | parts,
        recomputes_swiglu=False,
    )


OWN = "megatron-core's"


def layer_of_megatron() -> SimpleNamespace:
    def part() -> SimpleNamespace:
        return SimpleNamespace(forward=OWN)

    return SimpleNamespace(input_layernorm=part(), pre_mlp_layernorm=part(), self_attention=part(), mlp=part(), forward=OWN)


@pytest.mark.parametrize(
    ("part", "implementation", "replaced"),
    [
        ("norm", "triton", {"layer", "input_layernorm", "pre_mlp_layernorm"}),
        ("norm", "te", set()),
        ("rope", "triton", {"self_attention"}),
        ("rope", "te", set()),
        ("swiglu", "triton", {"mlp"}),
        ("swiglu", "gemm-epilogue", {"mlp"}),
        ("swiglu", "torch", set()),
    ],
)
def test_a_layer_computes_the_parts_that_were_chosen(part: str, implementation: str, replaced: set[str]) -> None:
    layer = layer_of_megatron()
    fused_layer._fuse_layer(layer, chosen(**{part: implementation}), OneRank(), adds_residual=True)
    parts = {"layer": layer, **{name: value for name, value in vars(layer).items() if name != "forward"}}
    assert {name for name, module in parts.items() if module.forward is not OWN} == replaced


def last_stage() -> tuple[SimpleNamespace, SimpleNamespace]:
    """A model with no layers and its configuration."""
    model = SimpleNamespace(
        decoder=SimpleNamespace(layers=[], final_layernorm=SimpleNamespace(forward=OWN)),
        output_layer=SimpleNamespace(weight="own", forward=None),
        pre_process=False,
        post_process=True,
        compute_language_model_loss=OWN,
    )
    config = SimpleNamespace(
        architecture=preset("tiny"),
        parallelism=SimpleNamespace(tensor=1),
        precision=SimpleNamespace(deterministic=False),
    )
    return model, config


@pytest.mark.parametrize("layers", ["te", "torch"])
@pytest.mark.parametrize("cross_entropy", ["torch", "triton"])
def test_the_last_norm_is_transformer_engines(layers: str, cross_entropy: str) -> None:
    model, config = last_stage()
    fused_layer.fuse(model, config, chosen(layers=layers, cross_entropy=cross_entropy), OneRank())
    assert (model.decoder.final_layernorm.forward is OWN) == (layers == "te")
    assert (model.compute_language_model_loss is OWN) == (cross_entropy == "torch")


def test_the_output_layer_leaves_its_gemm_to_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(fused_layer, "output_losses", lambda *tensors: given.append(tensors) or torch.arange(6.0))
    model, config = last_stage()
    fused_layer.fuse(model, config, chosen(cross_entropy="fused-linear"), OneRank())
    hidden_states = torch.arange(12.0).view(3, 2, 2)
    labels = torch.tensor([[0, 1, 2], [3, 4, 5]])
    for weight, expected in ((None, "own"), ("embedding's", "embedding's")):
        logits, bias = model.output_layer.forward(hidden_states, weight=weight, runtime_gather_output=None)
        losses = model.compute_language_model_loss(labels, logits)
        rows, used, flat, *_ = given.pop()
        assert (bias, used) == (None, expected)
        assert torch.equal(rows, hidden_states.view(6, 2))
        assert flat.tolist() == [0, 3, 1, 4, 2, 5]
        assert losses.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_only_contiguous_tensors_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(fused_layer, "output_losses", lambda *tensors: given.extend(tensors[:3]) or torch.zeros(3))
    hidden_states, labels = torch.zeros(3, 1, 8)[..., :4], torch.zeros(1, 6, dtype=torch.int64)[:, ::2]
    fused_layer._output_losses(labels, fused_layer.DeferredLogits(hidden_states, torch.zeros(2, 4)), OneRank(), 2)
    assert all(tensor.is_contiguous() for tensor in given)


@pytest.mark.parametrize(
    ("engine", "half", "shards", "expected"),
    [(True, True, False, True), (False, True, False, True), (True, True, True, False), (True, False, False, False)],
)
def test_where_gemms_add_their_gradients(engine: bool, half: bool, shards: bool, expected: bool) -> None:
    plan = SimpleNamespace(
        layers=SimpleNamespace(transformer_engine=engine),
        precision=SimpleNamespace(half=half),
        memory=SimpleNamespace(fully_sharded=shards),
        parallelism=SimpleNamespace(defers_weight_gradients=False),
    )
    assert _accumulates_in_gemms(plan) == expected
