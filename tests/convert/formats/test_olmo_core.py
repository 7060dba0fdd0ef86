"""Checkpoints of OLMo-core, with the settings that version 3.0 writes, are models of transformers bit for bit."""

import dataclasses
import json
import pickle
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from damaged_files import outcomes_of_damage
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, Olmo2Config, Olmo3Config, PreTrainedModel, Qwen3Config

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.commands.follow import following
from lt_convert.commands.follow.following import FollowRequest
from lt_convert.commands.merge import sources
from lt_convert.formats import location
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, ToolError

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "attention_factor": 1.2079441541679836}
WINDOWS = ["sliding_attention"] * 3 + ["full_attention"]
MODELS: dict[str, Any] = {
    "olmo2": Olmo2Config(**SIZES, rms_norm_eps=1e-6, rope_theta=500000.0),
    "olmo3": Olmo3Config(**SIZES, rms_norm_eps=1e-6, sliding_window=8, layer_types=WINDOWS, rope_theta=500000.0),
    "llama": LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_theta=500000.0),
    "qwen3": Qwen3Config(**SIZES, rms_norm_eps=1e-5, rope_theta=500000.0, head_dim=8),
}
NAMES = {
    "lm_head": "lm_head.w_out", "model.embed_tokens": "embeddings", "model.norm": "lm_head.norm", "model.layers": "blocks",
    "self_attn.q_proj": "attention.w_q", "self_attn.k_proj": "attention.w_k", "self_attn.v_proj": "attention.w_v",
    "self_attn.o_proj": "attention.w_out", "self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
}  # fmt: skip


def settings(name: str) -> dict[str, Any]:
    """`config.json` as a run of OLMo-core 3.0.0 writes it, with all fields of the classes."""
    norm = {
        "name": "rms",
        "eps": 1e-6 if "olmo" in name else 1e-5,
        "bias": False,
        "dtype": "float32",
        "_CLASS_": "LayerNormConfig",
    }
    rope = {"name": "default", "theta": 500000, "full_precision": True, "no_global_rope": False, "partial_rotary_factor": 1.0}
    attention: dict[str, Any] = {
        "name": "default", "n_heads": 4, "n_kv_heads": 2, "bias": False, "rope": rope, "dtype": "float32",
        "use_head_qk_norm": name == "qwen3", "scalable_softmax": False, "attention_sinks": False, "type": "attention",
    }  # fmt: skip
    if name != "llama":
        attention["qk_norm"] = norm
    if name == "olmo3":
        attention["sliding_window"] = {
            "pattern": [8, 8, 8, -1], "force_full_attention_on_first_layer": False, "force_full_attention_on_last_layer": True,
        }  # fmt: skip
    block = {
        "sequence_mixer": attention, "layer_norm": norm, "name": "reordered_norm" if "olmo" in name else "default",
        "feed_forward": {"hidden_size": 48, "name": "default", "bias": False, "dtype": "float32", "activation": "silu"},
    }  # fmt: skip
    head = {"name": "default", "layer_norm": norm, "bias": False, "dtype": "float32", "loss_implementation": "default"}
    model = {
        "d_model": 32, "vocab_size": 96, "n_layers": 4, "block": block, "lm_head": head, "name": "default", "dtype": "float32",
        "init_method": "normal", "init_seed": 0, "init_std": 0.02, "tie_word_embeddings": False,
    }  # fmt: skip
    tokenizer = {"vocab_size": 95, "eos_token_id": 7, "pad_token_id": 8, "identifier": "allenai/dolma2-tokenizer"}
    return {"model": model, "dataset": {"tokenizer": tokenizer}, "train_module": {"max_sequence_length": 64}}


def model_of(name: str, change: Any = None) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(change or MODELS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def renamed(name: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
    if "olmo" in name:
        norms = {"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "feed_forward_norm"}
    result = {}
    for key, tensor in state.items():
        for theirs, ours in (NAMES | norms).items():
            key = key.replace(theirs, ours)
        result[key] = tensor
    return result


@dataclasses.dataclass
class StorageInfo:
    relative_path: str
    offset: int
    length: int


def write(place: Path, name: str, state: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step of OLMo-core: its writer is torch's, with a class of its own for the places in `.metadata`."""
    weights = place / "model_and_optim"
    optim = {"state": {"embeddings.weight": {"exp_avg": torch.ones(96, 32)}}, "param_groups": {"lr": 1e-3}}
    dcp.save({"model": renamed(name, state), "optim": optim}, checkpoint_id=weights, no_dist=True)
    modules = "olmo_core olmo_core.distributed olmo_core.distributed.checkpoint olmo_core.distributed.checkpoint.filesystem"
    for module in modules.split():
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    StorageInfo.__module__, StorageInfo.__qualname__ = module, "_StorageInfo"
    sys.modules[module].__dict__["_StorageInfo"] = StorageInfo
    metadata = pickle.loads((weights / ".metadata").read_bytes())
    stored = metadata.storage_data
    metadata.storage_data = {key: StorageInfo(at.relative_path, at.offset, at.length) for key, at in stored.items()}
    (weights / ".metadata").write_bytes(pickle.dumps(metadata))
    (place / "train").mkdir()
    torch.save({"global_step": 10}, place / "train" / "rank0.pt")
    (place / ".metadata.json").write_text('{"version": "3.0.0"}')
    (place / "config.json").write_text(json.dumps(settings(name)))
    return place


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model((torch.arange(50) * 29 % 96)[None]).logits


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name)
    write(tmp_path / "run" / "step10", name, model.state_dict(), monkeypatch)
    conversion.convert(Request(str(tmp_path / "run"), "megatron-dist", str(tmp_path / "megatron")))
    for source, result, step in (("run", "direct", 10), ("megatron", "back", None)):
        assert conversion.convert(Request(str(tmp_path / source), "hf", str(tmp_path / result))).iteration == step
        tensors = load_file(tmp_path / result / "model.safetensors")
        assert tensors.keys() == model.state_dict().keys()
        assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in tensors.items())
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / result, dtype=torch.float32).eval()
        assert loaded.config.model_type == name
        assert torch.equal(logits(loaded), logits(model))
    config = json.loads((tmp_path / "direct" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"], config["max_position_embeddings"]) == (7, 8, 64)


def edit(step: Path, change: Callable[[dict[str, Any]], None]) -> None:
    record = json.loads((step / "config.json").read_text())
    change(record["model"])
    (step / "config.json").write_text(json.dumps(record))


def test_scaling_on_the_layers_without_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`with_rope_scaling` of OLMo-core gives these layers settings of their own in block_overrides."""
    name = "olmo3"
    rope = {"full_attention": YARN | {"rope_theta": 500000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}
    fields = {**SIZES, "rms_norm_eps": 1e-6, "sliding_window": 8, "layer_types": WINDOWS}
    model = model_of(name, Olmo3Config(**fields, rope_parameters=rope))
    step = write(tmp_path / "step10", name, model.state_dict(), monkeypatch)

    def scale(record: dict[str, Any]) -> None:
        block = json.loads(json.dumps(record["block"]))
        scaling = {"factor": 8.0, "beta_fast": 32, "beta_slow": 1, "old_context_len": 16}
        block["sequence_mixer"]["rope"]["scaling"] = scaling | {"_CLASS_": "olmo_core.nn.rope.YaRNRoPEScalingConfig"}
        record["block_overrides"] = {"3": block}

    edit(step, scale)
    conversion.convert(Request(str(step), "hf", str(tmp_path / "hf")))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()), logits(model))


def test_older_names_and_packed_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings before version 2.5 say `attention`; fused_v2 has queries, keys and values in one matrix."""
    model = model_of("olmo2")
    state = model.state_dict()
    for layer in range(4):
        keys = [f"model.layers.{layer}.self_attn.{letter}_proj.weight" for letter in "qkv"]
        state[f"model.layers.{layer}.attention.w_qkv.weight"] = torch.cat([state.pop(key) for key in keys])
    step = write(tmp_path / "step10", "olmo2", state, monkeypatch)

    def rename(record: dict[str, Any]) -> None:
        record["block"]["attention"] = record["block"].pop("sequence_mixer") | {"name": "fused_v2"}
        del record["block"]["attention"]["type"]

    edit(step, rename)
    conversion.convert(Request(str(step), "hf", str(tmp_path / "hf")))
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in tensors.items())


def setter(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            record = record[parent]
        record[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("name", "normalized", "model.name is 'normalized', which no other format has"),
        ("embed_scale", 2.0, "model.embed_scale"),
        ("embedding_norm", {"name": "rms"}, "model.embedding_norm"),
        ("block.name", "peri_norm", "block 'peri_norm' with norms"),
        ("block.feed_forward_moe", {"num_experts": 4}, "model.block.feed_forward_moe"),
        ("block.attention_residual_alpha", 0.5, "attention_residual_alpha"),
        ("block.sequence_mixer.type", "gated_delta_net", "attention.type is 'gated_delta_net'"),
        ("block.sequence_mixer.clip_qkv", 8.0, "attention.clip_qkv"),
        ("block.sequence_mixer.gate", {"granularity": "headwise"}, "attention.gate"),
        ("block.sequence_mixer.attention_sinks", True, "attention.attention_sinks"),
        ("block.sequence_mixer.bias", True, "attention.bias is True"),
        ("block.sequence_mixer.rope.name", "complex", "rope.name is 'complex'"),
        ("block.sequence_mixer.rope.partial_rotary_factor", 0.25, "partial_rotary_factor"),
        ("block.sequence_mixer.rope.scaling", {"_CLASS_": "x.ABFRoPEScalingConfig"}, "rope.scaling"),
        ("block.layer_norm.name", "default", "layer_norm.name is 'default'"),
        ("block.feed_forward.activation", "gelu", "activation is 'gelu'"),
        ("block.sequence_mixer.invented", 3, "attention.invented is 3"),
        ("block.sequence_mixer.rope", None, "not the settings of an OLMo-core run"),
        ("block", [], "not the settings"),
        ("n_layers", 10**9, "not the settings"),
        ("n_layers", 5, "missing model.layers.4"),
        ("lm_head.layer_norm.eps", 1e-3, "lm_head.layer_norm.eps differs"),
    ],
)
def test_settings_that_no_other_format_has(
    path: str, value: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = write(tmp_path / "step10", "olmo2", model_of("olmo2").state_dict(), monkeypatch)
    edit(step, setter(path, value))
    with pytest.raises(BadData, match=message):
        conversion.convert(Request(str(step), "hf", str(tmp_path / "hf")))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "run" / "step10", "olmo2", model_of("olmo2").state_dict(), monkeypatch)
    shutil.copytree(tmp_path / "run" / "step10", tmp_path / "run" / "step9")
    shutil.copytree(tmp_path / "run" / "step10", tmp_path / "run" / "step20")
    return tmp_path / "run"


def newest(run: Path) -> str:
    with Files() as files:
        return location.locate(str(run), files)[0].rsplit("/", 1)[-1]


@pytest.mark.parametrize("last", [".metadata.json", "config.json"])
def test_a_step_that_is_being_written(last: str, run: Path, tmp_path: Path) -> None:
    assert newest(run) == "step20"
    (run / "step20" / last).unlink()
    assert newest(run) == "step10"
    assert [Path(one.path).name for one in sources.last_of_run(str(run), 2)] == ["step9", "step10"]
    converted: list[str] = []
    request = FollowRequest(str(run), "hf", str(tmp_path / "followed"))
    assert following.follow(request, None, lambda one: converted.append(Path(one.path).name))
    assert converted == ["step-9", "step-10"]
    with pytest.raises(BadData, match=f"step20/{last}: missing"):
        conversion.convert(Request(str(run / "step20"), "hf", str(tmp_path / "hf")))


@pytest.mark.parametrize("damage", ["truncated", "missing", "metadata"])
def test_a_damaged_newest_step_is_an_error(damage: str, run: Path, tmp_path: Path) -> None:
    weights = run / "step20" / "model_and_optim"
    shard = max(weights.glob("*.distcp"), key=lambda path: path.stat().st_size)
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-100])
    else:
        (shard if damage == "missing" else weights / ".metadata").unlink()
    with pytest.raises(ToolError, match="step20"):
        conversion.convert(Request(str(run), "hf", str(tmp_path / "hf")))
    request = FollowRequest(str(run), "hf", str(tmp_path / "followed"))
    assert not following.follow(request, None, lambda _: None)
    assert sorted(path.name for path in (tmp_path / "followed").iterdir() if path.is_dir()) == ["step-10", "step-9"]


def test_any_damage_is_refused_or_harmless(run: Path, tmp_path: Path) -> None:
    step = run / "step20"
    files = (step / "config.json", step / "model_and_optim" / ".metadata", *sorted(step.glob("model_and_optim/*.distcp")))
    outcomes = outcomes_of_damage(step, files, tmp_path / "hf", 20, 0.7)
    assert outcomes == {"harmless", "refused"}


def test_model_and_optim_alone_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="of OLMo-core") as error:
        conversion.convert(Request(str(run / "step10" / "model_and_optim"), "hf", str(tmp_path / "hf")))
    assert "name the directory above" in str(error.value.hint)
