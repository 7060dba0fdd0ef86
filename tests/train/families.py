"""Every model family beside transformers' model of it, with the same weights: what lt-train builds, and what config.json means.

A program, because lt-train changes torch for a process without a GPU: prints, for each command line in the JSON list on standard
input, the largest difference of the logits and of all weights' gradients, each as a share of the largest.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import nursery
import torch
from layouts import plan_of
from reserved_ports import free_port
from running import environment

from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture
from lt_train.config import kernels
from lt_train.process import device
from lt_train.process.rank_environment import RankEnvironment

SEQUENCE = 64
# Of a command line: experts as tensor-parallel ranks compute them.
ONE_BY_ONE = "--experts-one-by-one"
# Model types that transformers knows under another name.
NATIVE = {"kimi_k2": "deepseek_v3"}


def transformers_weights(weights: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    """megatron-core's weights of one rank under transformers' names."""
    weights = _grouped(weights)
    embedding = weights["embedding.word_embeddings.weight"]
    found = {
        "model.embed_tokens.weight": embedding[: shape.vocab_size],
        "model.norm.weight": weights["decoder.final_layernorm.weight"],
        "lm_head.weight": weights.get("output_layer.weight", embedding)[: shape.vocab_size],
    }
    for layer in range(shape.num_layers):
        part = {key.removeprefix(f"decoder.layers.{layer}."): value for key, value in weights.items()}
        attention = _latent_attention(part) if shape.latent_attention else _attention(part, shape)
        mlp = _experts(part, shape) if shape.has_experts(layer) else _feed_forward(part)
        if shape.model_type == "phi3":
            attention, mlp = _fused(attention, mlp)
        found |= {f"model.layers.{layer}.{key}": value for key, value in (attention | mlp | _norms(part, shape)).items()}
    return found


def _grouped(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts that are computed one by one have a tensor each."""
    found, experts = {}, {}
    for name, weight in weights.items():
        layer, is_expert, rest = name.partition("local_experts.")
        if is_expert and weight is not None:
            experts.setdefault(layer + rest.partition(".")[2], []).append(weight)
        else:
            found[name] = weight
    return found | {name: torch.stack(parts) for name, parts in experts.items()}


def _norms(part: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    """transformers calls the norm before the MLP `post_attention_layernorm`, but where there is one behind attention."""
    behind = {"post_attention": "self_attention.linear_proj.post", "post_feedforward": "mlp.linear_fc2.post"}
    names = {
        "pre": {"input": "input", "post_attention": "pre_mlp"},
        "post": behind,
        "both": {"input": "input", "pre_feedforward": "pre_mlp"} | behind,
    }[shape.norm_placement]
    return {f"{theirs}_layernorm.weight": part[f"{ours}_layernorm.weight"] for theirs, ours in names.items()}


def _attention(part: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    head, groups = shape.kv_channels, shape.num_query_groups
    queries = shape.num_attention_heads // groups * head
    output = {kind: part.get(f"self_attention.linear_proj.{kind}") for kind in ("weight", "bias")}
    found = {f"self_attn.o_proj.{kind}": value for kind, value in output.items() if value is not None}
    if shape.attention_sinks:
        found["self_attn.sinks"] = part["self_attention.core_attention.softmax_offset"]
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


def _latent_attention(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {
        "linear_q_proj": "q_proj",
        "linear_q_down_proj": "q_a_proj",
        "q_layernorm": "q_a_layernorm",
        "linear_q_up_proj": "q_b_proj",
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        "kv_layernorm": "kv_a_layernorm",
        "linear_kv_up_proj": "kv_b_proj",
        "linear_proj": "o_proj",
    }
    indexer = {"linear_wq_b": "wq_b", "linear_wk": "wk", "k_norm": "k_norm", "linear_weights_proj": "weights_proj"}
    names |= {f"core_attention.indexer.{ours}": f"indexer.{theirs}" for ours, theirs in indexer.items()}
    found = {theirs: part.get(f"self_attention.{ours}.weight") for ours, theirs in names.items()}
    bias = part.get("self_attention.core_attention.indexer.k_norm.bias")
    biases = {} if bias is None else {"self_attn.indexer.k_norm.bias": bias}
    return {f"self_attn.{name}.weight": weight for name, weight in found.items() if weight is not None} | biases


def _feed_forward(part: dict[str, torch.Tensor], ours: str = "mlp.", theirs: str = "mlp.") -> dict[str, torch.Tensor]:
    gate, up = part[f"{ours}linear_fc1.weight"].chunk(2)
    down = part[f"{ours}linear_fc2.weight"]
    return {f"{theirs}gate_proj.weight": gate, f"{theirs}up_proj.weight": up, f"{theirs}down_proj.weight": down}


def _fused(attention: dict[str, torch.Tensor], mlp: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], ...]:
    qkv = torch.cat([attention.pop(f"self_attn.{name}_proj.weight") for name in "qkv"])
    gate_up = torch.cat([mlp.pop(f"mlp.{name}_proj.weight") for name in ("gate", "up")])
    return attention | {"self_attn.qkv_proj.weight": qkv}, mlp | {"mlp.gate_up_proj.weight": gate_up}


def _experts(part: dict[str, torch.Tensor], shape: Architecture) -> dict[str, torch.Tensor]:
    if shape.add_bias_linear:
        return _gpt_oss_experts(part)
    found = {
        "mlp.gate.weight": part["mlp.router.weight"],
        "mlp.experts.gate_up_proj": part["mlp.experts.linear_fc1.weight"],
        "mlp.experts.down_proj": part["mlp.experts.linear_fc2.weight"],
    }
    # A buffer: it has no gradient.
    if "mlp.router.expert_bias" in part:
        found["mlp.gate.e_score_correction_bias"] = part["mlp.router.expert_bias"]
    if shape.moe_shared_expert_intermediate_size:
        found |= _feed_forward(part, "mlp.shared_experts.", "mlp.shared_experts.")
    return found


def _gpt_oss_experts(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """[experts, in, out], the outputs of the first matrix being gate 0, up 0, gate 1 ..."""
    first, bias = part["mlp.experts.linear_fc1.weight"], part["mlp.experts.linear_fc1.bias"]
    return {
        "mlp.router.weight": part["mlp.router.weight"],
        "mlp.router.bias": part["mlp.router.bias"],
        "mlp.experts.gate_up_proj": torch.stack(first.chunk(2, dim=1), dim=2).flatten(1, 2).transpose(1, 2),
        "mlp.experts.gate_up_proj_bias": torch.stack(bias.chunk(2, dim=1), dim=2).flatten(1, 2),
        "mlp.experts.down_proj": part["mlp.experts.linear_fc2.weight"].transpose(1, 2),
        "mlp.experts.down_proj_bias": part["mlp.experts.linear_fc2.bias"],
    }


def differences(arguments: list[str], where: torch.device) -> dict[str, float]:
    from transformers import AutoConfig, AutoModelForCausalLM

    from lt_train.models import builder
    from lt_train.models.chunks import unwrap

    plan = plan_of([argument for argument in arguments if argument != ONE_BY_ONE])
    shape, chosen = plan.architecture, kernels.choose(plan, None)
    if ONE_BY_ONE in arguments:
        chosen = dataclasses.replace(chosen, experts=kernels.SEQUENTIAL)
    ours = unwrap(builder.build(plan, chosen, where)[0]).eval()
    biases = [buffer for name, buffer in ours.named_buffers() if name.endswith("expert_bias")]
    with torch.no_grad():
        for index, parameter in enumerate((*ours.parameters(), *biases)):
            generator = torch.Generator().manual_seed(index)
            alpha = 0.3 if parameter.dim() == 1 else 0.15
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=alpha)
        for name, parameter in ours.named_parameters():
            if shape.activation == "clamped_swiglu" and "linear_fc1" in name:
                # So that a tenth of the values is beyond the limits.
                parameter.mul_(2)
    config = huggingface.to_config(shape, "float32")
    config["model_type"] = NATIVE.get(config["model_type"], config["model_type"])
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
    theirs.load_state_dict(transformers_weights(ours.state_dict(), shape))
    tokens = torch.randint(shape.vocab_size, (2, SEQUENCE), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(SEQUENCE).expand_as(tokens)
    logits = [ours(tokens, positions, None), theirs(tokens).logits]
    # The loss is over the padding of the vocabulary, too, which must have no part in it.
    for each in logits:
        torch.nn.functional.cross_entropy(each.flatten(0, 1), tokens.flatten()).backward()
    found = transformers_weights({name: of_gradient(parameter) for name, parameter in ours.named_parameters()}, shape)
    largest = max(_largest(of_gradient(parameter)) for parameter in theirs.parameters())
    return {
        "logits": _largest(logits[0][..., : shape.vocab_size] - logits[1]) / _largest(logits[1]),
        "gradient": max(_largest(found[name] - of_gradient(parameter)) for name, parameter in theirs.named_parameters())
        / largest,
    }


def of_gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """lt-train's data parallelism moves it to `main_grad`, unless its wrapper has been collected before."""
    if parameter.grad is not None:
        return parameter.grad
    moved: torch.Tensor | None = getattr(parameter, "main_grad", None)
    return torch.zeros_like(parameter) if moved is None else moved


def _largest(difference: torch.Tensor) -> float:
    return difference.abs().max().item()


def compare(commands: dict[str, list[str]], program: str = __file__) -> dict[str, dict[str, Any]]:
    """What a program that calls `main` prints for these command lines of lt-train."""
    done = subprocess.run(
        [nursery.python(), program], input=json.dumps(commands), capture_output=True, text=True, timeout=900, env=environment()
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def main(differences: Callable[[list[str], torch.device], dict[str, Any]]) -> None:
    """Print what `differences` returns on one rank, on a CPU, for each command line that is read from stdin, by their names."""
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
    main(differences)
