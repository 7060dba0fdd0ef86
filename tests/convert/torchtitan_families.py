"""TorchTitan's own models and state-dict adapters beside our checkpoints, in a process of its own.

    python torchtitan_families.py JOBS.json

For each job, `load` is a converted checkpoint and `hf` the model it was made of: the adapter's tensors must be the checkpoint's,
bit by bit, and `logits` are what TorchTitan's model computes with them.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
import torchtitan_model  # Prepares torchtitan for a machine without a GPU.
from safetensors.torch import load_file
from torch.distributed import checkpoint
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
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

from lt_shared.architecture import Architecture

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
        run(job)


if __name__ == "__main__":
    main()
