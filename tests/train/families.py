"""Every model family beside transformers' model of it, with the same weights: what lt-train builds, and what config.json means.

A program, because lt-train changes torch for a process without a GPU: prints, for each command line in the JSON list on standard
input, the largest difference of the logits and of the embedding's gradient.
"""

import json
import os
import sys
from typing import Any

import torch
from layouts import plan_of
from reserved_ports import free_port

from lt_shared import huggingface
from lt_shared.architecture import Architecture
from lt_train.config import kernels
from lt_train.runtime import device
from lt_train.runtime.rank_environment import RankEnvironment

SEQUENCE = 64


def transformers_weights(weights: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    """megatron-core's weights of one rank under transformers' names."""
    found = {
        "model.embed_tokens.weight": weights["embedding.word_embeddings.weight"],
        "model.norm.weight": weights["decoder.final_layernorm.weight"],
        "lm_head.weight": weights.get("output_layer.weight", weights["embedding.word_embeddings.weight"]),
    }
    for layer in range(shape.num_layers):
        part = {key.removeprefix(f"decoder.layers.{layer}."): value for key, value in weights.items()}
        attention = _attention(part, shape)
        mlp = _experts(part, shape) if shape.num_experts else _feed_forward(part)
        norms = {
            "input_layernorm.weight": part["input_layernorm.weight"],
            "post_attention_layernorm.weight": part["pre_mlp_layernorm.weight"],
        }
        if shape.model_type == "phi3":
            attention, mlp = _fused(attention, mlp)
        found |= {f"model.layers.{layer}.{key}": value for key, value in (attention | mlp | norms).items()}
    return found


def _attention(part: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    head, groups = shape.kv_channels, shape.num_query_groups
    queries = shape.num_attention_heads // groups * head
    found = {"self_attn.o_proj.weight": part["self_attention.linear_proj.weight"]}
    for kind in ("weight", "bias"):
        if f"self_attention.linear_qkv.{kind}" not in part:
            continue
        mixed = part[f"self_attention.linear_qkv.{kind}"].unflatten(0, (groups, queries + 2 * head))
        for name, piece in zip("qkv", mixed.split([queries, head, head], dim=1), strict=True):
            found[f"self_attn.{name}_proj.{kind}"] = piece.flatten(0, 1)
    for name in "qk":
        if shape.qk_layernorm:
            found[f"self_attn.{name}_norm.weight"] = part[f"self_attention.{name}_layernorm.weight"]
    return found


def _feed_forward(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    gate, up = part["mlp.linear_fc1.weight"].chunk(2)
    return {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up, "mlp.down_proj.weight": part["mlp.linear_fc2.weight"]}


def _fused(attention: dict[str, torch.Tensor], mlp: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], ...]:
    qkv = torch.cat([attention.pop(f"self_attn.{name}_proj.weight") for name in "qkv"])
    gate_up = torch.cat([mlp.pop(f"mlp.{name}_proj.weight") for name in ("gate", "up")])
    return attention | {"self_attn.qkv_proj.weight": qkv}, mlp | {"mlp.gate_up_proj.weight": gate_up}


def _experts(part: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    def stacked(name: str) -> torch.Tensor:
        return torch.stack(
            [part[f"mlp.experts.local_experts.{expert}.{name}.weight"] for expert in range(shape.num_experts or 0)]
        )

    return {
        "mlp.gate.weight": part["mlp.router.weight"],
        "mlp.experts.gate_up_proj": stacked("linear_fc1"),
        "mlp.experts.down_proj": stacked("linear_fc2"),
    }


def differences(arguments: list[str], where: torch.device) -> dict[str, float]:
    from transformers import AutoConfig, AutoModelForCausalLM

    from lt_train.models import build_gpt

    plan = plan_of(arguments)
    shape = plan.architecture
    ours = build_gpt.unwrapped(build_gpt.build(plan, kernels.choose(plan, None), where)[0]).eval()
    with torch.no_grad():
        for index, parameter in enumerate(ours.parameters()):
            generator = torch.Generator().manual_seed(index)
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**huggingface.to_config(shape, "float32")), attn_implementation="eager"
    ).eval()
    theirs.load_state_dict(transformers_weights(ours.state_dict(), shape))
    tokens = torch.randint(shape.vocab_size, (2, SEQUENCE), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(SEQUENCE).expand_as(tokens)
    logits = [ours(tokens, positions, None), theirs(tokens).logits]
    embeddings = [ours.embedding.word_embeddings.weight, theirs.model.embed_tokens.weight]
    gradients = [
        torch.autograd.grad(torch.nn.functional.cross_entropy(each.flatten(0, 1), tokens.flatten()), embedding)[0]
        for each, embedding in zip(logits, embeddings, strict=True)
    ]
    return {name: (pair[0] - pair[1]).abs().max().item() for name, pair in (("logits", logits), ("gradient", gradients))}


def main() -> None:
    place = RankEnvironment(0, 0, 1, 1, "127.0.0.1", free_port(), "test")
    os.environ.update(place.variables())
    where = device.prepare("cpu", place)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    device.communicate_on_loopback(place)
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    commands: dict[str, Any] = json.load(sys.stdin)
    print(json.dumps({name: differences(arguments, where) for name, arguments in commands.items()}))


if __name__ == "__main__":
    main()
