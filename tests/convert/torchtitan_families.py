"""TorchTitan's own models and state-dict adapters beside our checkpoints, in a process of its own.

    python torchtitan_families.py JOBS.json

For each job, `load` is a converted checkpoint and `hf` the model it was made of: the adapter's tensors must be the checkpoint's,
bit by bit, and `logits` are what TorchTitan's model computes with them. Or `flavor` is one of TorchTitan's own configurations.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch
import torchtitan_model  # Prepares torchtitan for a machine without a GPU.
from safetensors.torch import load_file
from torch.distributed import checkpoint
from torchtitan.models import deepseek_v3 as titan_deepseek
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
from torchtitan.models.deepseek_v3.model import DeepSeekV3Model
from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter
from torchtitan.models.gpt_oss.model import GptOssModel
from torchtitan.models.gpt_oss.state_dict_adapter import GptOssStateDictAdapter
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

from lt_shared.models.architecture import Architecture
from lt_shared.models.rope_scaling import YarnScaling

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
                    **torchtitan_model.scaled(architecture.rope_scaling),
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
    )


def deepseek(architecture: Architecture) -> DeepSeekV3Model.Config:
    """TorchTitan's DeepSeek of this size, by the function that makes its own. All its norms have an epsilon of 1e-5."""
    frame = torchtitan_model.configuration(architecture, fused=True)
    latent, scaling = architecture.latent_attention, architecture.rope_scaling
    assert latent is not None
    layers = titan_deepseek._build_dsv3_layers(
        n_layers=architecture.num_layers,
        n_dense_layers=architecture.moe_first_dense_layers,
        dim=architecture.hidden_size,
        n_heads=architecture.num_attention_heads,
        q_lora_rank=latent.q_lora_rank or 0,
        kv_lora_rank=latent.kv_lora_rank,
        qk_nope_head_dim=latent.qk_head_dim,
        qk_rope_head_dim=latent.qk_pos_emb_head_dim,
        v_head_dim=latent.v_head_dim,
        mscale=(isinstance(scaling, YarnScaling) and scaling.mscale_all_dim) or 0.0,
        dense_hidden_dim=architecture.ffn_hidden_size,
        moe_hidden_dim=architecture.expert_size,
        num_experts=architecture.num_experts,
        num_shared_experts=(architecture.moe_shared_expert_intermediate_size or 0) // architecture.expert_size,
        router_top_k=architecture.moe_router_topk,
        router_score_func=architecture.moe_router_score_function,
        router_num_expert_groups=architecture.moe_router_num_groups,
        router_num_limited_groups=architecture.moe_router_group_topk,
        router_route_scale=architecture.moe_router_topk_scaling_factor,
        router_route_norm=architecture.moe_router_score_function == "sigmoid",
        attn_backend="flex",
        moe_comm_backend="standard",
        non_blocking_capacity_factor=None,
        rope=torchtitan_model.rope(architecture),
    )
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
        for norm in (layer.attention_norm, layer.ffn_norm, layer.attention.q_norm, layer.attention.kv_norm):
            norm.eps = architecture.norm_epsilon
    predictions = titan_deepseek._build_mtp_layers(
        layers[-1], dim=architecture.hidden_size, num_mtp_layers=architecture.mtp_num_layers
    )
    fields = {field.name: getattr(frame, field.name) for field in dataclasses.fields(frame)}
    return DeepSeekV3Model.Config(**fields | {"layers": layers, "mtp_layers": predictions})


def gpt_oss(architecture: Architecture) -> GptOssModel.Config:
    """TorchTitan's gpt-oss of this size. Its own configurations have 64 heads and windows of 128."""
    frame = torchtitan_model.configuration(architecture, fused=True)
    rope = CosSinRoPE.Config(
        dim=architecture.kv_channels,
        max_seq_len=architecture.max_position_embeddings,
        theta=architecture.rotary_base,
        **torchtitan_model.scaled(architecture.rope_scaling),
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


def _in_float32() -> AbstractContextManager[Any]:
    """TorchTitan multiplies experts in bfloat16 whatever the model's dtype is, so that a token near the edge takes others."""
    return mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.float)


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
    with torch.no_grad(), _in_float32():
        tokens, masks = torch.tensor(job["tokens"]), {"basic_mask": None, "sliding_window_mask": None}
        numpy.save(job["logits"], model(tokens, attention_masks=masks).float().numpy())


def _with_absent_biases(expected: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What an adapter makes of a model whose router has no balancing biases, with the zeros that TorchTitan begins with."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items() if name.endswith("expert_bias_E")} | expected


def run(job: dict[str, Any]) -> None:
    architecture = Architecture.from_record(job["architecture"])
    if architecture.latent_attention:
        config, adapter = deepseek(architecture), DeepSeekV3StateDictAdapter
    elif architecture.qk_layernorm:
        config, adapter = qwen3(architecture), Qwen3StateDictAdapter
    else:
        config, adapter = torchtitan_model.configuration(architecture, fused=True), Llama3StateDictAdapter
    model = config.build()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=job["load"], no_dist=True)
    expected = adapter(config, None).from_hf(load_file(Path(job["hf"], "model.safetensors")))
    if not architecture.moe_router_enable_expert_bias:
        expected = _with_absent_biases(expected, state)
    assert state.keys() == expected.keys(), state.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
    model.load_state_dict(state)
    with torch.no_grad(), _in_float32():
        numpy.save(job["logits"], model(torch.tensor(job["tokens"])).float().numpy())


def _differing(ours: Any, theirs: Any, name: str = "") -> Iterator[str]:
    """The names of settings in which two configurations differ, but for initialisation and the implementation of attention."""
    if dataclasses.is_dataclass(ours) and type(ours) is type(theirs):
        for field in dataclasses.fields(ours):
            yield from _differing(getattr(ours, field.name), getattr(theirs, field.name), field.name)
    elif isinstance(ours, list) and len(ours) == len(theirs):
        for each, other in zip(ours, theirs, strict=True):
            yield from _differing(each, other, name)
    elif name not in ("param_init", "inner_attention") and ours != theirs:
        yield name


def compare(job: dict[str, Any]) -> None:
    """The model of a DeepSeek's size beside TorchTitan's own configuration, its `flavor`."""
    architecture = Architecture.from_record(job["architecture"])
    theirs = titan_deepseek.deepseekv3_configs[job["flavor"]](
        attn_backend="flex", moe_comm_backend="standard", num_mtp_layers=architecture.mtp_num_layers
    )
    Path(job["differing"]).write_text(json.dumps(sorted(set(_differing(deepseek(architecture), theirs)))))


def main() -> None:
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        if "flavor" in job:
            compare(job)
        elif job["architecture"].get("attention_sinks"):
            run_gpt_oss(job)
        else:
            run(job)


if __name__ == "__main__":
    main()
