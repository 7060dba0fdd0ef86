"""Beside megatron-core's GPTModel: a program that prints in what `lt_train.models.decoder.Decoder` differs from it.

Both have the same weights. megatron-core's has its own layers, without anything of lt-train.
"""

import dataclasses
from typing import Any

import families
import torch
from families import of_gradient
from layouts import plan_of

from lt_train.config import kernels

# Of the experts that a layer routes to, megatron-core has a module each (`of_each_expert`).
EXPERTS = ".mlp.experts."
# Marks that megatron-core's optimizers, reductions and checkpoints read.
MARKS = (
    *("is_embedding_or_output_parameter", "zero_out_wgrad", "shared", "shared_embedding", "tensor_model_parallel"),
    *("partition_dim", "partition_stride", "allreduce", "sequence_parallel"),
)


def stock(plan: Any, where: torch.device) -> Any:
    """megatron-core's model of the same configuration, of megatron-core's own layers."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.moe import moe_utils

    from lt_train.models.mixers import rope
    from lt_train.models.transformer_config import transformer_config

    # The router of 0.16 asks for a name that it has with TransformerEngine only.
    vars(moe_utils).setdefault("te_general_gemm", None)
    architecture, config = plan.architecture, _with_mup(transformer_config(plan, where), plan.optimization.mup)
    is_gpt = architecture.family == "gpt"
    model = GPTModel(
        config,
        get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization),
        plan.padded_vocab_size,
        architecture.max_position_embeddings,
        share_embeddings_and_output_weights=architecture.tie_embeddings,
        position_embedding_type="learned_absolute" if is_gpt else "rope",
        rotary_percent=architecture.rotary_percent,
    )
    if not is_gpt:
        model.rotary_pos_emb.inv_freq = rope.inverse_frequencies(architecture, plan.batches.seq_length)
    return model


def _with_mup(config: Any, mup: Any) -> Any:
    """megatron-core finds the scale of scores and the multipliers itself, from 0.19 on."""
    if mup is None:
        return config
    options = {f"mup_{name}": value for name, value in dataclasses.asdict(mup).items() if name != "width_multiplier"}
    named = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    return type(config)(**named | options | {"use_mup": True, "softmax_scale": None})


def rates(parameters: dict[str, Any], plan: Any) -> dict[str, list[str]]:
    """Of megatron-core's model: the parameters that its muP and lt-train's groups give other settings."""
    from megatron.core.optimizer import OptimizerConfig, get_mup_config_overrides

    from lt_train.optim import optimizer

    updates = plan.optimization
    config = OptimizerConfig(lr=updates.lr, min_lr=updates.min_lr, adam_eps=updates.adam_eps)
    theirs = get_mup_config_overrides(config, updates.width_multiplier)
    ours = optimizer.width_overrides(config, updates.width_multiplier)
    found = {}
    for name, parameter in parameters.items():
        settings = [
            [value for key, value in overrides.items() if "max_lr" in value and key.matches(parameter, name)]
            for overrides in (ours, theirs)
        ]
        if settings[0] != settings[1]:
            found[name] = list(map(str, settings))
    return found


def of_each_expert(tensors: dict[str, Any]) -> dict[str, Any]:
    """Tensors of all experts of a layer, as megatron-core has them: one for each expert."""
    found = {}
    for name, tensor in tensors.items():
        layer, grouped, rest = name.partition(".experts.linear_")
        parts = (
            {f"{layer}.experts.local_experts.{number}.linear_{rest}": each for number, each in enumerate(tensor)}
            if grouped
            else {}
        )
        found |= parts or {name: tensor}
    return found


def marks(parameter: torch.nn.Parameter) -> dict[str, Any]:
    """False is as without the mark."""
    found = {name: getattr(parameter, name, False) for name in MARKS}
    return {name: mark for name, mark in found.items() if mark is not False}


def entries(model: Any) -> dict[str, list[Any]]:
    """Of a checkpoint: what decides where a tensor is stored, and which of its copies is."""
    names = ("key", "global_shape", "global_offset", "replica_id", "allow_shape_mismatch")
    return {
        name: [type(entry).__name__, *(getattr(entry, attribute, None) for attribute in names)]
        for name, entry in model.sharded_state_dict().items()
    }


def outputs_of_blocks(model: Any) -> list[torch.Tensor]:
    """Filled by each forward pass: the output of each block."""
    outputs: list[torch.Tensor] = []
    for block in model.decoder.layers:
        block.register_forward_hook(
            lambda module, inputs, output: outputs.append(output[0] if isinstance(output, tuple) else output)
        )
    return outputs


def error(own: torch.Tensor, stock: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((own - stock).abs().max() / stock.abs().max())


def differences(arguments: list[str], where: torch.device) -> dict[str, Any]:
    from lt_train.models import builder
    from lt_train.models.chunks import unwrap

    plan = plan_of(arguments)
    ours = unwrap(builder.build(plan, kernels.choose(plan, None), where)[0])
    theirs = stock(plan, where)
    with torch.no_grad():
        for number, parameter in enumerate(ours.parameters()):
            # Norms' weights begin as ones, biases as zeros.
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)), alpha=0.02)
    theirs.load_state_dict(of_each_expert(ours.state_dict()))
    tokens, labels = torch.randint(plan.architecture.vocab_size, (2, 2, 16), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(16).expand_as(tokens)
    blocks = [outputs_of_blocks(model) for model in (ours, theirs)]
    losses = [model(tokens, positions, None, labels=labels) for model in (ours, theirs)]
    for each in losses:
        each.sum().backward()
    own, stock_gradients = (
        of_each_expert({name: of_gradient(parameter) for name, parameter in model.named_parameters()}) for model in (ours, theirs)
    )
    largest = max(float(gradient.abs().max()) for gradient in stock_gradients.values())
    found = {
        "losses": error(*losses),
        "blocks": [error(*pair) for pair in zip(*blocks, strict=True)],
        "gradients": {name: error(own[name], gradient) for name, gradient in stock_gradients.items() if gradient.any()},
        "no gradient": [name for name, gradient in stock_gradients.items() if not gradient.any() and own[name].any()],
        "largest gradient": largest,
    }
    size = plan.architecture.vocab_size
    found["logits"] = error(*(model(tokens, positions, None)[..., :size] for model in (ours, theirs)))
    names, stock_names = ([name for name, _ in model.named_parameters() if EXPERTS not in name] for model in (ours, theirs))
    own_entries, stock_entries = entries(ours), entries(theirs)
    for number in range(plan.architecture.num_layers):
        if plan.architecture.has_experts(number):
            # As with TransformerEngine, where this norm is apart when experts follow: megatron-core's local layers store it as
            # part of a linear layer that is not there.
            entry = stock_entries[f"decoder.layers.{number}.pre_mlp_layernorm.weight"]
            entry[1] = entry[1].replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
    if plan.optimization.mup:
        found["rates"] = rates(dict(theirs.named_parameters()), plan)
    parameters, stock_parameters = dict(ours.named_parameters()), dict(theirs.named_parameters())
    return found | {
        "names": [] if names == stock_names else [names, stock_names],
        "marks": [name for name in names if marks(parameters[name]) != marks(stock_parameters[name])],
        "entries": [
            [name, own_entries.get(name), stock_entries.get(name)]
            for name in own_entries.keys() | stock_entries.keys()
            if EXPERTS not in name and own_entries.get(name) != stock_entries.get(name)
        ],
    }


if __name__ == "__main__":
    families.main(differences)
