"""TorchTitan's own models and state-dict adapters beside our checkpoints, in a process of its own.

    python torchtitan_families.py JOBS.json

For each job, `load` is a converted checkpoint and `hf` the model it was made of: the adapter's tensors must be the checkpoint's,
bit by bit, and `logits` are what TorchTitan's model computes with them.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torchtitan_model  # Prepares torchtitan for a machine without a GPU.
from safetensors.torch import load_file
from torch.distributed import checkpoint
from torchtitan.models import gpt_oss as titan_gpt_oss
from torchtitan.models.common import CosSinRoPE
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import (
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)
from torchtitan.models.common.moe import MoE
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.gpt_oss.model import GptOssModel
from torchtitan.models.gpt_oss.state_dict_adapter import GptOssStateDictAdapter
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

from lt_shared.architecture import Architecture
from lt_shared.rope_scaling import YarnScaling

_WEIGHT = {"weight": torch.nn.init.normal_}
_ONES = {"weight": torch.nn.init.ones_}


def qwen3(architecture: Architecture) -> Qwen3Model.Config:
    """TorchTitan's Qwen3 of this size: its Llama's frame with other layers in it."""
    frame = torchtitan_model.configuration(architecture, fused=True)

    def norm(size: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=size, eps=architecture.norm_epsilon, param_init=_ONES)

    def mlp() -> dict[str, Any]:
        if architecture.num_experts is None:
            feed_forward = make_ffn_config(
                dim=architecture.hidden_size,
                hidden_dim=architecture.ffn_hidden_size,
                w1_param_init=_WEIGHT,
                w2w3_param_init=_WEIGHT,
            )
            return {"feed_forward": feed_forward}
        return {"moe": experts(architecture)}

    def layer() -> Qwen3TransformerBlock.Config:
        return Qwen3TransformerBlock.Config(
            attention_norm=norm(architecture.hidden_size),
            ffn_norm=norm(architecture.hidden_size),
            attention=make_gqa_config(
                dim=architecture.hidden_size,
                n_heads=architecture.num_attention_heads,
                n_kv_heads=architecture.num_query_groups,
                head_dim=architecture.kv_channels,
                wqkv_param_init=_WEIGHT,
                wo_param_init=_WEIGHT,
                inner_attention=ScaledDotProductAttention.Config(),
                fuse_qkv=True,
                rope=CosSinRoPE.Config(
                    dim=architecture.kv_channels,
                    max_seq_len=architecture.max_position_embeddings,
                    theta=architecture.rotary_base,
                ),
                qk_norm=norm(architecture.kv_channels),
            ),
            **mlp(),
        )

    fields = {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    layers = [layer() for _ in range(architecture.num_layers)]
    return Qwen3Model.Config(**fields | {"norm": norm(architecture.hidden_size), "layers": layers})


def experts(architecture: Architecture) -> MoE.Config:
    """A layer's experts, chosen as Qwen3 does."""
    assert architecture.num_experts is not None
    weights = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), torch.nn.init.normal_)
    return make_moe_config(
        num_experts=architecture.num_experts,
        router=make_router_config(
            dim=architecture.hidden_size,
            num_experts=architecture.num_experts,
            gate_param_init=_WEIGHT,
            top_k=architecture.moe_router_topk,
            score_func="softmax",
            route_norm=not architecture.moe_router_pre_softmax,
        ),
        routed_experts=make_routed_experts_config(
            dim=architecture.hidden_size,
            hidden_dim=architecture.expert_size,
            num_experts=architecture.num_experts,
            top_k=architecture.moe_router_topk,
            param_init=weights,
            comm_backend="standard",
        ),
        load_balance_coeff=None,
    )


def gpt_oss(architecture: Architecture) -> GptOssModel.Config:
    """TorchTitan's gpt-oss of this size. Its own configurations have 64 heads and windows of 128."""
    frame = torchtitan_model.configuration(dataclasses.replace(architecture, rope_scaling=None), fused=True)
    scaling = architecture.rope_scaling
    assert isinstance(scaling, YarnScaling)
    rope = CosSinRoPE.Config(
        dim=architecture.kv_channels,
        max_seq_len=architecture.max_position_embeddings,
        theta=architecture.rotary_base,
        scaling="yarn",
        rope_factor=scaling.factor,
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        truncate=scaling.truncate,
        original_seq_len=scaling.original_max_position_embeddings,
    )
    sizes = {
        "hidden_dim": architecture.expert_size,
        "num_experts": architecture.num_experts,
        "top_k": architecture.moe_router_topk,
    }
    layers = titan_gpt_oss._build_gptoss_layers(
        dim=architecture.hidden_size,
        n_layers=architecture.num_layers,
        load_balance_coeff=None,
        attn_backend="flex",
        moe_comm_backend="standard",
        rope=rope,
        **sizes,
    )
    for number, layer in enumerate(layers):
        layer.attention = titan_gpt_oss._make_gptoss_attn_config(
            dim=architecture.hidden_size,
            layer_id=number,
            attn_backend="flex",
            n_heads=architecture.num_attention_heads,
            n_kv_heads=architecture.num_query_groups,
            head_dim=architecture.kv_channels,
            sliding_window_size=architecture.window(number),
            rope=rope,
        )
        for norm in (layer.attention_norm, layer.ffn_norm):
            norm.eps = architecture.norm_epsilon
    fields = {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    return GptOssModel.Config(**fields | {"layers": layers})


def _with_normalizers(window: int | None) -> Callable[..., torch.Tensor]:
    """In place of FlexAttention, which would be compiled: dense causal attention, whose normalizers TorchTitan asks for."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, out_transform: Any, **unused: Any) -> Any:
        heads, length = q.shape[2], q.shape[1]
        k, v = (each.repeat_interleave(heads // each.shape[2], dim=2) for each in (k, v))
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = (distance < 0) | (distance >= (window or length))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(scale).masked_fill(hidden, float("-inf"))
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return out_transform(mixed, scores.logsumexp(-1).transpose(1, 2))

    return attend


def _in_float32(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The experts put out bfloat16 whatever the model's dtype is, and are then added to tensors of it."""
    return lambda *inputs: forward(*inputs).float()


def run_gpt_oss(job: dict[str, Any]) -> None:
    architecture = Architecture.from_record(job["architecture"])
    config = gpt_oss(architecture)
    model = config.build()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=job["load"], no_dist=True)
    # The adapter reads the published files, whose experts are quantized and stored as [expert, out, in].
    stored = {}
    for name, tensor in load_file(Path(job["hf"], "model.safetensors")).items():
        is_matrix = name.endswith(("gate_up_proj", "down_proj"))
        stored[f"{name}_blocks" if is_matrix else name] = tensor.transpose(1, 2) if is_matrix else tensor
    # It lacks the axes that 0.3 has at the end of its own names.
    expected = GptOssStateDictAdapter(config, None).from_hf(stored)
    assert len(expected) == len(state)
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[re.sub(r"_E[GDF]+$", "", name)]), name
    model.load_state_dict(state)
    for number, layer in enumerate(model.layers.values()):
        layer.attention.inner_attention.forward = _with_normalizers(architecture.window(number))
        experts = layer.moe.routed_experts.inner_experts
        experts.forward = _in_float32(experts.forward)
    with torch.no_grad():
        tokens, masks = torch.tensor(job["tokens"]), {"basic_mask": None, "sliding_window_mask": None}
        numpy.save(job["logits"], model(tokens, attention_masks=masks).float().numpy())


def run(job: dict[str, Any]) -> None:
    architecture = Architecture.from_record(job["architecture"])
    if architecture.qk_layernorm:
        config, adapter = qwen3(architecture), Qwen3StateDictAdapter
    else:
        config, adapter = torchtitan_model.configuration(architecture, fused=True), Llama3StateDictAdapter
    model = config.build()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=job["load"], no_dist=True)
    expected = adapter(config, None).from_hf(load_file(Path(job["hf"], "model.safetensors")))
    assert state.keys() == expected.keys(), state.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
    model.load_state_dict(state)
    with torch.no_grad():
        numpy.save(job["logits"], model(torch.tensor(job["tokens"])).float().numpy())


def main() -> None:
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        (run_gpt_oss if job["architecture"].get("attention_sinks") else run)(job)


if __name__ == "__main__":
    main()
