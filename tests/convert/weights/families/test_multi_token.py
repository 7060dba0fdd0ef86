"""Multi-token prediction layers and balancing biases through every format, and what files lack or have beside a model."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import FileSystemReader, load

from lt_convert.commands.conversion import Request, convert
from lt_convert.formats import WRITTEN
from lt_convert.weights.families import family_of
from lt_convert.weights.mapping import HF, Model
from lt_shared.console import BadData
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture
from lt_shared.models.presets import preset

V3, QWEN = preset("tiny-deepseek-v3"), preset("tiny-qwen3-moe")
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
HEAD, COPY = "lm_head.weight", "model.layers.4.shared_head.head.weight"


def published(directory: Path, architecture: Architecture, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """A model as DeepSeek publishes it: the prediction layer is one more layer, with copies of the embedding and the head."""
    generator = torch.Generator().manual_seed(1)
    entries = family_of(architecture).entries(HF, Model(architecture, architecture.padded_vocab_size()))
    tensors = {
        name: torch.randn(entry.shape, generator=generator, dtype=torch.float32 if "bias" in name else torch.bfloat16)
        for name, entry in entries.items()
        if entry.primary
    }
    if architecture.mtp_num_layers:
        tensors[COPY] = tensors[HEAD].clone()
        tensors["model.layers.4.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    directory.mkdir()
    tensors |= changed
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(huggingface.to_config(architecture, "bfloat16")))
    return tensors


# HybridModel has other prediction layers, and refuses these (formats/megatron/test_hybrid.py).
@pytest.mark.parametrize("through", [name for name in WRITTEN if name not in ("hf", "megatron-hybrid")])
def test_a_published_model_there_and_back(through: str, stored_tensors: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    tensors = published(tmp_path / "v3", V3)
    convert(Request(str(tmp_path / "v3"), through, str(tmp_path / "there")))
    convert(Request(str(tmp_path / "there"), "hf", str(tmp_path / "back")))
    assert stored_tensors(tmp_path / "back") == stored_tensors(tmp_path / "v3")
    assert COPY in tensors
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert huggingface.from_config(config, V3.name) == V3


def test_behind_layers_that_are_all_alike_the_keys_are_the_same(tmp_path: Path) -> None:
    """Megatron stacks those layers, and never these: it loads no model whose `_extra_state` keys are not there."""
    keys = []
    for dense in (0, 1):
        published(tmp_path / f"{dense}", dataclasses.replace(V3, moe_ffn_hidden_size=64, moe_first_dense_layers=dense))
        convert(Request(str(tmp_path / f"{dense}"), "megatron-dist", str(tmp_path / f"{dense}-there")))
        metadata = FileSystemReader(tmp_path / f"{dense}-there/release").read_metadata().state_dict_metadata
        keys.append({key for key in metadata if key.startswith("mtp.")})
    assert keys[0] == keys[1]
    assert "mtp.layers.0.transformer_layer.self_attention.linear_proj._extra_state/shard_0_1" in keys[0]


def test_files_without_the_layer_that_config_json_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published(tmp_path / "v3", V3)
    tensors = load_file(tmp_path / "v3/model.safetensors")
    kept = {name: each for name, each in tensors.items() if ".layers.4." not in name}
    save_file(kept, tmp_path / "v3/model.safetensors", metadata={"format": "pt"})
    convert(Request(str(tmp_path / "v3"), "megatron-dist", str(tmp_path / "there")))
    assert "names 1 multi-token prediction layers that the files lack" in capsys.readouterr().err
    convert(Request(str(tmp_path / "there"), "hf", str(tmp_path / "back")))
    assert json.loads((tmp_path / "back/config.json").read_text())["num_nextn_predict_layers"] == 0


def test_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    published(tmp_path / "v3", V3, **{COPY: torch.ones(V3.vocab_size, V3.hidden_size, dtype=torch.bfloat16)})
    with pytest.raises(BadData, match=r"shared_head\.head\.weight differs from lm_head\.weight"):
        convert(Request(str(tmp_path / "v3"), "megatron-dist", str(tmp_path / "there")))


def test_biases_stay_in_float32(tmp_path: Path) -> None:
    tensors = published(tmp_path / "v3", V3)
    convert(Request(str(tmp_path / "v3"), "hf", str(tmp_path / "half"), dtype="float16"))
    found = load_file(tmp_path / "half/model.safetensors")
    assert found[HEAD].dtype == torch.float16
    assert torch.equal(found[BIAS], tensors[BIAS])


def test_torchtitan_gets_biases_that_a_router_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its loader wants them. Ones that training has moved have no place in Qwen3-MoE, which is said."""
    published(tmp_path / "qwen", QWEN)
    convert(Request(str(tmp_path / "qwen"), "torchtitan", str(tmp_path / "titan")))
    name = "layers.3.moe.expert_bias_E"
    state = {name: torch.ones(QWEN.num_experts or 0)}
    load(state, storage_reader=FileSystemReader(tmp_path / "titan"), no_dist=True)
    assert not state[name].any()
    convert(Request(str(tmp_path / "titan"), "hf", str(tmp_path / "back")))
    assert "expert_bias" not in capsys.readouterr().err
