"""Legacy files of models with latent attention: as megatron-core's own ranks have them, at tensor parallel size 2.

megatron-core has these layers as local ones here: without TransformerEngine, projections down to a latent are column parallel.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import AutoModelForCausalLM

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.checkpoint import ONE_RANK, LegacyTarget
from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.rope_scaling import YarnScaling

LATENT = LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=12)
V3 = Architecture(
    "run",
    "llama",
    3,
    32,
    88,
    4,
    4,
    250,
    64,
    kv_channels=0,
    norm_epsilon=1e-6,
    latent_attention=LATENT,
    rope_scaling=YarnScaling(4.0, 16, mscale=1.0, mscale_all_dim=1.0),
    num_experts=8,
    moe_router_topk=4,
    moe_router_num_groups=4,
    moe_router_group_topk=2,
    moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    moe_router_topk_scaling_factor=2.5,
    moe_ffn_hidden_size=24,
    moe_shared_expert_intermediate_size=48,
    moe_first_dense_layers=1,
)
ARCHITECTURES = {
    "v3": V3,
    "v2-lite": dataclasses.replace(
        V3,
        latent_attention=dataclasses.replace(LATENT, q_lora_rank=None),
        rope_scaling=YarnScaling(4.0, 16, mscale=0.707, mscale_all_dim=0.707),
        moe_router_num_groups=None,
        moe_router_group_topk=None,
        moe_router_score_function="softmax",
        moe_router_enable_expert_bias=False,
        moe_router_topk_scaling_factor=1.0,
        moe_router_pre_softmax=True,
    ),
}
TOKENS = [[(7 * position * position + 3) % 250 for position in range(60)]]
LAYOUT = LegacyTarget(tensor_parallel_size=2, local_layers=True)


@pytest.fixture(scope="module")
def stock(megatron: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME-dist and NAME-legacy, which two ranks of megatron-core saved of one model, and its logits in NAME.npy."""
    root = tmp_path_factory.mktemp("latent")
    common = {"padded_vocab_size": 256, "tokens": TOKENS, "tensor_parallel": 2}
    jobs = [
        {"architecture": architecture.to_record(), "save": str(root / f"{name}-dist"), "legacy": str(root / f"{name}-legacy")}
        | {"logits": str(root / f"{name}.npy")}
        | common
        for name, architecture in ARCHITECTURES.items()
    ]
    megatron(jobs, world_size=2)
    return root


def contents(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of every rank's file."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for path in sorted(run.rglob("model_optim_rng.pt")):
        with torch.serialization.safe_globals([argparse.Namespace]):
            state: dict[str, Any] = torch.load(path, weights_only=True)
        found[path.parent.name] = {name: each for name, each in state["model"].items() if isinstance(each, torch.Tensor)}
    return found


def convert(source: Path, to: str, destination: Path, layout: LegacyTarget = ONE_RANK) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), legacy_target=layout)).path)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_written_it_is_what_megatrons_ranks_have(stock: Path, name: str, tmp_path: Path) -> None:
    convert(stock / f"{name}-dist", "megatron-legacy", tmp_path / "legacy", LAYOUT)
    found, expected = contents(tmp_path / "legacy"), contents(stock / f"{name}-legacy")
    assert found.keys() == expected.keys() == {"mp_rank_00", "mp_rank_01"}
    for rank, tensors in expected.items():
        assert found[rank].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert torch.equal(found[rank][key], tensor), (rank, key)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_read_it_computes_what_megatron_did(stock: Path, name: str, tmp_path: Path) -> None:
    convert(stock / f"{name}-legacy", "hf", tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        found = model(torch.tensor(TOKENS)).logits.numpy()
    assert numpy.abs(found - numpy.load(stock / f"{name}.npy")[..., :250]).max() < 1e-5


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("local", [True, False], ids=["local layers", "TransformerEngine"])
def test_cut_and_joined_it_is_the_same(stock: Path, name: str, local: bool, tmp_path: Path) -> None:
    convert(stock / f"{name}-legacy", "hf", tmp_path / "expected")
    model = convert(tmp_path / "expected", "megatron-legacy", tmp_path / "cut", LegacyTarget(2, local_layers=local))
    down = [tensor.shape for name, tensor in contents(model)["mp_rank_00"].items() if "linear_kv_down_proj" in name]
    assert down[0][0] == (LATENT.kv_lora_rank + LATENT.qk_pos_emb_head_dim) // (2 if local else 1)
    convert(model, "hf", tmp_path / "hf")
    read = [(tmp_path / place / "model.safetensors").read_bytes() for place in ("expected", "hf")]
    assert read[0] == read[1]
