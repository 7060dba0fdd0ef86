"""HybridModel's layers in torch_dist: megatron-core's own HybridModel and GPTModel compute the same from converted weights."""

import dataclasses
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from stored_checkpoints import stored_values

from lt_convert.commands import checkpoint_comparison
from lt_convert.commands.conversion import Request, convert
from lt_convert.formats import location
from lt_convert.formats.megatron import torch_dist
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData
from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.presets import preset

needs_hybrid_model = pytest.mark.skipif(
    tuple(map(int, metadata.version("megatron-core").split(".")[:2])) < (0, 19),
    reason="HybridModel came with megatron-core 0.19, for which Python 3.12 is needed",
)
LLAMA = Architecture("family", "llama", 3, 32, 88, 4, 2, 250, 64, rotary_base=20000.0)
EXPERTS = dataclasses.replace(
    LLAMA, num_experts=4, moe_ffn_hidden_size=24, moe_shared_expert_intermediate_size=48, moe_first_dense_layers=1
)
MODELS = {
    "dense": dataclasses.replace(LLAMA, qk_layernorm=True, kv_channels=16, tie_embeddings=True),
    "windows": dataclasses.replace(
        LLAMA, num_experts=4, ffn_hidden_size=40, kv_channels=16, sliding_window=12, window_attn_skip_freq=2,
        attention_sinks=True, add_bias_linear=True, activation="clamped_swiglu",
    ),
    "first layer dense": dataclasses.replace(
        EXPERTS, kv_channels=16, add_qkv_bias=True, qk_layernorm=True, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=2.5,
    ),
    "latent attention": dataclasses.replace(
        EXPERTS, num_query_groups=4, kv_channels=0, norm_epsilon=1e-6, moe_router_pre_softmax=True,
        latent_attention=LatentAttention(24, 16, 16, 8, 12),
    ),
    "a layer without rotation": dataclasses.replace(LLAMA, no_rope_freq=2),
    "learned positions": dataclasses.replace(LLAMA, family="gpt", num_query_groups=4, rotary_base=10000.0),
}  # fmt: skip
# Layouts of two ranks: in the second, a pipeline's first stage has two of three blocks.
LAYOUTS = {"tensor parallel": {"tensor_parallel": 2}, "pipeline parallel": {"pipeline_parallel": 2}}
APART = ("dense", "first layer dense")
PADDED = 256
TOKENS = [[(7 * position * position + 3) % 250 for position in range(60)]]


@dataclasses.dataclass(frozen=True)
class Results:
    root: Path

    def logits(self, name: str, how: str) -> Any:
        return numpy.load(self.root / f"{name} {how}.npy")


@pytest.fixture(scope="module")
def results(megatron: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Each model made by GPTModel and by HybridModel, converted, and computed by the other one."""
    root = tmp_path_factory.mktemp("hybrid")

    def job(name: str, how: str, **more: Any) -> dict[str, Any]:
        common = {"architecture": MODELS[name].to_record(), "padded_vocab_size": PADDED, "tokens": TOKENS}
        return common | {"logits": str(root / f"{name} {how}.npy")} | more

    made = [job(name, "made by GPTModel", save=str(root / f"{name} gpt")) for name in MODELS]
    made += [job(name, "made by HybridModel", save=str(root / f"{name} hybrid"), hybrid=True) for name in MODELS]
    megatron(made)
    for name in MODELS:
        convert(Request(str(root / f"{name} gpt"), "megatron-hybrid", str(root / f"{name} to hybrid")))
        convert(Request(str(root / f"{name} hybrid"), "megatron-dist", str(root / f"{name} to gpt")))
    hybrids = {name: str(root / f"{name} to hybrid" / "release") for name in MODELS}
    loaded = [job(name, "in HybridModel", load=hybrids[name], hybrid=True) for name in MODELS]
    loaded += [job(name, "in GPTModel", load=str(root / f"{name} to gpt" / "release")) for name in MODELS]
    megatron(loaded)
    apart = [job(name, how, load=hybrids[name], hybrid=True, **LAYOUTS[how]) for name in APART for how in LAYOUTS]
    megatron(apart, world_size=2)
    return Results(root)


@needs_hybrid_model
@pytest.mark.parametrize("name", MODELS)
def test_hybrid_model_computes_what_gpt_model_does(results: Results, name: str) -> None:
    expected = results.logits(name, "made by GPTModel")
    assert numpy.abs(expected).max() > 1
    assert numpy.array_equal(results.logits(name, "in HybridModel"), expected)


@needs_hybrid_model
@pytest.mark.parametrize("name", MODELS)
def test_gpt_model_computes_what_hybrid_model_does(results: Results, name: str) -> None:
    expected = results.logits(name, "made by HybridModel")
    assert numpy.abs(expected).max() > 1
    assert numpy.array_equal(results.logits(name, "in GPTModel"), expected)


@needs_hybrid_model
@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("name", APART)
def test_ranks_that_share_a_model_load_it(results: Results, name: str, how: str) -> None:
    assert numpy.abs(results.logits(name, how) - results.logits(name, "made by GPTModel")).max() < 1e-5


@pytest.fixture
def hybrid(models: dict[str, Path], tmp_path: Path) -> Path:
    """A checkpoint with the layers of HybridModel, of a model of three blocks."""
    return Path(convert(Request(str(models["grouped"]), "megatron-hybrid", str(tmp_path / "run"))).path)


def test_the_tensors_say_whose_layers_they_are(hybrid: Path, models: dict[str, Path], tmp_path: Path) -> None:
    gpt = convert(Request(str(models["grouped"]), "megatron-dist", str(tmp_path / "gpt"))).path
    with Files() as files:
        assert [location.locate(str(path), files)[1] for path in (hybrid, gpt)] == ["megatron-hybrid", "megatron-dist"]
    assert checkpoint_comparison.compare(str(hybrid), gpt)["same"]
    names = stored_values(hybrid).keys()
    assert {"decoder.layers.4.self_attention.linear_proj.weight", "decoder.layers.5.mlp.linear_fc2.weight"} <= names
    assert "decoder.final_norm.weight" in names


def rewrite_arguments(directory: Path, **changes: Any) -> None:
    """Change Megatron's arguments, and remove what lt-convert has added beside the files of Megatron-LM."""
    common = torch.load(directory / "common.pt", weights_only=False)
    vars(common["args"]).update(changes)
    torch.save(common, directory / "common.pt")
    for name in ("run.json", "checksums.json", "../lt-convert.json"):
        (directory / name).unlink()


def test_arguments_alone_describe_the_model(hybrid: Path, models: dict[str, Path], tmp_path: Path) -> None:
    rewrite_arguments(hybrid, hybrid_layer_pattern="*-|*-*-")
    convert(Request(str(hybrid), "hf", str(tmp_path / "back")))
    assert checkpoint_comparison.compare(str(tmp_path / "back"), str(models["grouped"]))["same"]


@pytest.mark.parametrize(("name", "old_name"), [("tiny-nemotron-h", True), ("tiny-nemotron-h-moe", False)])
def test_layers_of_one_part(name: str, old_name: bool, write_model: Callable[..., Path], tmp_path: Path) -> None:
    """Mamba-2, attention and MLPs alone, with the arguments of Megatron-LM's own checkpoints."""
    model = write_model(tmp_path / "model", preset(name))
    hybrid = Path(convert(Request(str(model), "megatron-hybrid", str(tmp_path / "run"))).path)
    arguments = vars(torch.load(hybrid / "common.pt", weights_only=False)["args"])
    pattern = {"tiny-nemotron-h": "M-M*M-", "tiny-nemotron-h-moe": "MEM*ME"}[name]
    assert (arguments["hybrid_layer_pattern"], arguments["num_layers"]) == (pattern, 6)
    assert arguments["position_embedding_type"] == "none"
    assert "decoder.layers.3.self_attention.linear_proj.weight" in stored_values(hybrid)
    old = {"hybrid_layer_pattern": None, "hybrid_override_pattern": pattern, "is_hybrid_model": True}
    rewrite_arguments(hybrid, **(old if old_name else {}))
    convert(Request(str(hybrid), "hf", str(tmp_path / "back")))
    assert checkpoint_comparison.compare(str(tmp_path / "back"), str(model))["same"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("G-*-*-", r"layer 0 of the layer pattern 'G-\*-\*-' is a gated delta layer"),
        ("*-D-*-", r"layer 2 of .* is sparse attention with an indexer"),
        ("*-*-*-/*-/*-", r"multi-token prediction layers"),
        ("**--*-", r"not attention and an MLP in turns"),
        ("*-*|-*-", r"not attention and an MLP in turns, in each pipeline stage"),
        ("*-*-*X", r"'X' in the layer pattern .* is no kind of layer"),
        ("*-*E*-", r"has experts, and num_experts is not set"),
        ("+-*-*-", r"attention of two kinds"),
    ],
)
def test_other_layers_are_refused_by_kind(hybrid: Path, pattern: str, reason: str, tmp_path: Path) -> None:
    rewrite_arguments(hybrid, hybrid_layer_pattern=pattern)
    with pytest.raises(BadData, match=reason):
        convert(Request(str(hybrid), "hf", str(tmp_path / "back")))
    assert not (tmp_path / "back").exists()


def test_prediction_layers_are_refused(write_model: Callable[..., Path], tmp_path: Path) -> None:
    model = dataclasses.replace(MODELS["first layer dense"], mtp_num_layers=1)
    with pytest.raises(BadData, match="multi-token prediction layers, which are not supported in the layers of HybridModel"):
        convert(Request(str(write_model(tmp_path / "hf", model)), "megatron-hybrid", str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_scaling_that_hybrid_model_lacks_is_told(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(Request(str(models["scaled"]), "megatron-hybrid", str(tmp_path / "run")))
    assert "Megatron-LM's HybridModel lacks its RoPE scaling" in capsys.readouterr().err


STATES = {
    "dense": (MODELS["dense"], {"tensor_parallel": 2}),
    "expert parallel": (dataclasses.replace(LLAMA, num_experts=4, ffn_hidden_size=40), {"expert_parallel": 2}),
    "fp32": (dataclasses.replace(LLAMA, num_layers=4), {"pipeline_parallel": 2, "dtype": "float32"}),
}
# Stock megatron-core has an optimizer each for experts and other weights, and takes no state of both in one.
LOADED = ("dense", "fp32")
FLAT, PER_WEIGHT = "dp_reshardable", "fully_reshardable"
ITERATION = "iter_0000003"


@pytest.fixture(scope="module")
def states(ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of GPTModel and HybridModel with the distributed optimizer, and runs that loaded each other's converted state."""
    root = tmp_path_factory.mktemp("states")

    def job(name: str, kind: str, **more: Any) -> dict[str, Any]:
        architecture, layout = STATES[name]
        forms = (PER_WEIGHT,) if kind.startswith("then") else (FLAT, PER_WEIGHT)
        save = {form: str(root / f"{name} {kind}" / form / ITERATION) for form in forms}
        common = {"architecture": architecture.to_record(), "padded_vocab_size": PADDED, "steps": 3, "save": save}
        return common | layout | {"hybrid": kind.endswith("hybrid")} | more

    ranks("megatron_optimizer.py", [job(name, kind) for name in STATES for kind in ("gpt", "hybrid")], world_size=2)
    loaded = []
    for name in LOADED:
        for source, to, kind in (("gpt", "megatron-hybrid", "then hybrid"), ("hybrid", "megatron-dist", "then gpt")):
            converted = root / f"{name} to {kind}"
            convert(Request(str(root / f"{name} {source}" / PER_WEIGHT / ITERATION), to, str(converted)))
            loaded.append(job(name, kind, steps=1, load=str(converted / ITERATION), distributed=False))
    ranks("megatron_optimizer.py", loaded, world_size=2)
    return root


def canonical(directory: Path, work: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint in GPTModel's layout, as torch reads them."""
    source = str(directory)
    with Files() as files:
        is_hybrid = torch_dist.is_hybrid(source, files)
    return stored_values(Path(convert(Request(source, "megatron-dist", str(work))).path) if is_hybrid else directory)


def differing(name: str, expected: dict[str, torch.Tensor], again: dict[str, torch.Tensor]) -> list[str]:
    """The tensors of `expected` that are others in `again`. The main weights of an fp32 model are its weights."""
    assert len([key for key in expected if "exp_avg_sq" in key]) >= 8
    is_fp32 = STATES[name][1].get("dtype") == "float32"
    compared = [key for key in expected if not (is_fp32 and "state.param." in key)]
    return [key for key in compared if key not in again or not torch.equal(expected[key], again[key])]


@needs_hybrid_model
@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize(("source", "then"), [("gpt", "then hybrid"), ("hybrid", "then gpt")])
def test_the_other_model_loads_weights_and_optimizer_state(
    states: Path, name: str, source: str, then: str, tmp_path: Path
) -> None:
    """What it then saves is, converted back, what the first model saved: bit for bit."""
    expected = canonical(states / f"{name} {source}" / PER_WEIGHT / ITERATION, tmp_path / "one")
    again = canonical(states / f"{name} {then}" / PER_WEIGHT / ITERATION, tmp_path / "two")
    assert differing(name, expected, again) == []


@needs_hybrid_model
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("source", ["gpt", "hybrid"])
def test_there_and_back_keeps_every_bit(states: Path, name: str, source: str, tmp_path: Path) -> None:
    original = states / f"{name} {source}" / PER_WEIGHT / ITERATION
    there, back = ("megatron-hybrid", "megatron-dist") if source == "gpt" else ("megatron-dist", "megatron-hybrid")
    convert(Request(str(original), there, str(tmp_path / "there")))
    convert(Request(str(tmp_path / "there"), back, str(tmp_path / "back")))
    expected, again = stored_values(original), stored_values(tmp_path / "back" / ITERATION)
    assert differing(name, expected, again) == []


@needs_hybrid_model
@pytest.mark.parametrize("name", STATES)
def test_flat_buffers_are_taken_apart(states: Path, name: str, tmp_path: Path) -> None:
    run = states / f"{name} hybrid"
    converted = canonical(run / FLAT / ITERATION, tmp_path / "flat")
    expected = canonical(run / PER_WEIGHT / ITERATION, tmp_path / "whole")
    assert differing(name, expected, converted) == []
