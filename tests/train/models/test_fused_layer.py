"""Training with the kernels beside training without them, in Triton's interpreter."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import stored
import torch
from megatron.core.transformer.mlp import MLP
from running import losses, train

from lt_shared.console import BadConfig
from lt_shared.presets import preset
from lt_train.models import fused_layer, layer_specs
from lt_train.models.attention import CausalAttention
from lt_train.models.build_gpt import _accumulates_in_products

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
        (("--train-iters", "100", "--lr", "3e-3", "--global-batch-size", "1", "--vocab-size", "64"), 100, 1),
    ],
    ids=["two micro batches a step", "a hundred steps"],
)
def test_losses_are_those_without_kernels(tmp_path: Path, options: tuple[str, ...], steps: int, fall: float) -> None:
    expected = trained(tmp_path / "torch", *TORCH, *options)
    # Roundings of float32 near 4 are 2.4e-7.
    assert trained(tmp_path / "triton", *TRITON, *options) == pytest.approx(expected, abs=2e-6)
    assert len(expected) == steps
    assert expected[-1] < expected[0] - fall


def test_one_pass_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    expected = trained(tmp_path / "torch", *TORCH, *BF16)
    trained(tmp_path / "triton", *TRITON, *BF16, "--exit-interval", "2", code=75)
    # Rounding to 16 bits in other places; a step counted twice or never would show ten times that.
    assert trained(tmp_path / "triton", *TRITON, *BF16) == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("first", [(), ("--use-distributed-optimizer",)], ids=["whole", "split"])
@pytest.mark.parametrize("second", [(), ("--use-distributed-optimizer",)], ids=["whole", "split"])
def test_one_pass_ends_with_the_weights_of_a_run_without_a_checkpoint(
    tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """In every bit of the float32 weights and of the moments, which are saved under names that go by the optimizer."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    trained(whole, *TRITON, "--bf16", *second)
    trained(resumed, *TRITON, "--bf16", *first, "--exit-interval", "2", code=75)
    trained(resumed, *TRITON, "--bf16", *second)
    expected, found = (stored.tensors(run / "iter_0000004") for run in (whole, resumed))
    names = [name for name in expected if name.startswith("optimizer.state.")]
    assert any("param." in name for name in names)
    for name in names:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("model", [(), ("--num-experts", "4", "--moe-router-topk", "2")], ids=["dense", "experts"])
def test_one_pass_overlaps_its_messages(tmp_path: Path, model: tuple[str, ...]) -> None:
    """The new weights are there when the next pass needs them, also when the run evaluates and saves between."""
    common = (*TRITON, *BF16, *model, "--ranks", "2", "--eval-iters", "1", "--eval-interval", "2", "--save-interval", "3")
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
        fused_layer, "gated_mlp", lambda rows, *weights, **options: seen.extend(weights) or told.update(options) or rows
    )
    mlp = SimpleNamespace(linear_fc1=fc1, linear_fc2=fc2)
    fused_layer._gated_mlp(mlp, torch.ones(1, 2), keeps_activation=True)
    assert [bool(weight.eq(7).all()) for weight in seen] == [True, True]
    assert told == {"keeps_activation": True}


@pytest.mark.parametrize("engine", [True, False])
@pytest.mark.parametrize("attends", [True, False])
def test_layers_of_transformer_engine_keep_their_norms_and_their_attention(engine: bool, attends: bool) -> None:
    """`attends` says that the attention is TransformerEngine's, too. Its layers need a GPU: here are others in their place."""
    mlp = MLP.__new__(MLP)
    torch.nn.Module.__init__(mlp)
    core = torch.nn.Identity() if attends else CausalAttention.__new__(CausalAttention)
    layer = SimpleNamespace(
        input_layernorm=SimpleNamespace(forward="own"),
        pre_mlp_layernorm=SimpleNamespace(forward="own"),
        self_attention=SimpleNamespace(core_attention=core, forward="own"),
        mlp=mlp,
        forward="own",
    )
    architecture = preset("tiny")
    chosen = SimpleNamespace(transformer_engine=engine, hidden_dropout=0.0, swiglu_in="kernel")
    plan = SimpleNamespace(
        architecture=architecture,
        layers=chosen,
        memory=SimpleNamespace(recomputed_modules=(), offloaded_layers=0, fully_sharded=False),
        parallelism=SimpleNamespace(device="cuda", tensor=1),
        precision=SimpleNamespace(bf16=True, fp8_format=None, dtype="bfloat16"),
    )
    fused_layer._fuse_layer(layer, plan, sums=True)
    are_own = [part.forward == "own" for part in (layer, layer.input_layernorm, layer.pre_mlp_layernorm)]
    assert are_own == [engine] * 3
    assert (layer.self_attention.forward == "own") == attends
    assert mlp.forward.func is fused_layer._mlp
    mlp.forward = "own"
    plan.memory.offloaded_layers = 1
    fused_layer._fuse_layer(layer, plan, sums=True)
    assert mlp.forward == "own"


def last_stage(engine: bool) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A model with no layers and its plan; `engine` says that TransformerEngine computes it."""
    model = SimpleNamespace(
        decoder=SimpleNamespace(layers=[], final_layernorm=SimpleNamespace(forward="own")),
        output_layer=SimpleNamespace(weight="own", forward=None),
        pre_process=False,
        post_process=True,
        compute_language_model_loss=None,
    )
    plan = SimpleNamespace(
        architecture=preset("tiny"),
        layers=SimpleNamespace(transformer_engine=engine),
        parallelism=SimpleNamespace(tensor=1),
        precision=SimpleNamespace(deterministic=False),
    )
    return model, plan


@pytest.mark.parametrize("engine", [True, False])
def test_the_last_norm_is_transformer_engines(engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "_loses_in_product", lambda plan: False)
    model, plan = last_stage(engine)
    fused_layer.fuse(model, plan)
    assert (model.decoder.final_layernorm.forward == "own") == engine
    assert model.compute_language_model_loss is fused_layer._losses


def test_the_output_layer_leaves_its_product_to_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "_loses_in_product", lambda plan: True)
    told = []
    monkeypatch.setattr(fused_layer, "output_losses", lambda *given: told.append(given) or torch.arange(6.0))
    model, plan = last_stage(engine=False)
    fused_layer.fuse(model, plan)
    hidden_states = torch.arange(12.0).view(3, 2, 2)
    labels = torch.tensor([[0, 1, 2], [3, 4, 5]])
    for weight, expected in ((None, "own"), ("embedding's", "embedding's")):
        logits, bias = model.output_layer.forward(hidden_states, weight=weight, runtime_gather_output=None)
        losses = model.compute_language_model_loss(labels, logits)
        rows, used, flat = told.pop()
        assert (bias, used) == (None, expected)
        assert torch.equal(rows, hidden_states.view(6, 2))
        assert flat.tolist() == [0, 3, 1, 4, 2, 5]
        assert losses.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_only_contiguous_tensors_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(fused_layer, "output_losses", lambda *tensors: given.extend(tensors) or torch.zeros(3))
    hidden_states, labels = torch.zeros(3, 1, 8)[..., :4], torch.zeros(1, 6, dtype=torch.int64)[:, ::2]
    fused_layer._output_losses(labels, fused_layer.Unmultiplied(hidden_states, torch.zeros(2, 4)))
    assert all(tensor.is_contiguous() for tensor in given)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"loss_in": "kernel"}, False),
        ({"device": "cpu"}, False),
        ({"bf16": False}, False),
        ({"fully_sharded": True}, False),
        ({"z_loss_coeff": 1e-4}, False),
        ({"padded_vocab_size": 2176}, False),
        ({"vocab_size": 2016, "padded_vocab_size": 2016}, False),
        ({"hidden_size": 132}, False),
        ({"context": 8}, False),
        ({"seq_length": 31, "micro_batch_size": 3}, False),
        ({"capability": (8, 0)}, False),
    ],
    ids=str,
)
def test_where_the_loss_is_in_the_product(changed: dict[str, object], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"loss_in": "products", "device": "cuda", "bf16": True, "fully_sharded": False, "z_loss_coeff": 0.0}
    values |= {"vocab_size": 2048, "padded_vocab_size": 2048, "hidden_size": 128, "capability": (9, 0)}
    values |= {"seq_length": 32, "micro_batch_size": 1, "context": 2} | changed
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: values["capability"])
    every = SimpleNamespace(**values)
    plan = SimpleNamespace(
        layers=every, parallelism=every, precision=every, memory=every, optimization=every, architecture=every, batches=every,
        padded_vocab_size=values["padded_vocab_size"],
    )  # fmt: skip
    assert fused_layer._loses_in_product(plan) == expected


@pytest.mark.parametrize(("obstacle", "major", "expected"), [(None, 9, True), (None, 8, False), ("experts", 9, False)])
def test_where_swiglu_is_in_the_products(
    obstacle: str | None, major: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (major, 0))
    monkeypatch.setattr(fused_layer.swiglu, "obstacle", lambda *parts: obstacle)
    memory, precision = SimpleNamespace(fully_sharded=False, recomputed_modules=()), SimpleNamespace(fp8_format=None)
    plan = SimpleNamespace(memory=memory, precision=precision, layers=None, architecture=None, parallelism=None)
    assert fused_layer._gates_in_products(plan) == expected
    memory.recomputed_modules = ("swiglu",)
    if major == 8:
        with pytest.raises(BadConfig, match="needs a Hopper GPU"):
            fused_layer._gates_in_products(plan)


@pytest.mark.parametrize(
    ("engine", "half", "shards", "expected"),
    [(True, True, False, True), (False, True, False, True), (True, True, True, False), (True, False, False, False)],
)
def test_where_products_add_their_gradients(engine: bool, half: bool, shards: bool, expected: bool) -> None:
    plan = SimpleNamespace(
        layers=SimpleNamespace(transformer_engine=engine),
        precision=SimpleNamespace(half=half),
        memory=SimpleNamespace(fully_sharded=shards),
    )
    assert _accumulates_in_products(plan) == expected


@pytest.mark.parametrize(
    ("attention", "ranks", "offloads", "documents", "expected"),
    [
        ("flash", 1, False, False, False),
        ("fused", 1, False, False, True),
        ("flash", 2, False, False, True),
        ("flash", 1, True, False, True),
        ("fused", 2, False, True, False),
    ],
)
def test_where_transformer_engine_attends(attention: str, ranks: int, offloads: bool, documents: bool, expected: bool) -> None:
    config = SimpleNamespace(context_parallel_size=ranks, cpu_offloading=offloads)
    assert layer_specs._engine_attends(config, SimpleNamespace(attention=attention), documents) == expected
