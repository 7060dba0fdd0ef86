"""Megatron-LM's legacy checkpoints: saved from and loaded into megatron-core's own GPTModel, one process a rank.

    python legacy_model.py JOBS.json RANK WORLD_SIZE RENDEZVOUS_FILE

A job fills the weights from the hash of their global names or `load`s the rank's file, then `save`s as Megatron-LM's
checkpointing does (`torch.save` of one file a tensor and pipeline rank, weights under the names of the local layers), writes
`logits`, or both. A job may also `convert` a checkpoint that one before it saved. An interleaved pipeline runs here as a chain:
each chunk's output is sent on to the rank of the next.
"""

import argparse
import functools
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy
import torch
from groups_left import leave_groups
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron_model import place_in_whole, without_transformer_engine

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.checkpoint import LegacyTarget
from lt_shared.models import megatron_arguments
from lt_shared.models.architecture import Architecture


def chunks(architecture: Architecture, job: dict[str, Any]) -> list[GPTModel]:
    """This rank's stages of the model, in the order of the layers."""
    llama = architecture.family == "llama"
    pipeline, virtual = parallel_state.get_pipeline_model_parallel_world_size(), job.get("virtual_pipeline")
    rank = parallel_state.get_pipeline_model_parallel_rank()
    config = TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels,
        layernorm_epsilon=architecture.norm_epsilon,
        normalization="RMSNorm" if llama else "LayerNorm",
        activation_func=torch.nn.functional.silu if llama else functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        gated_linear_unit=llama,
        add_bias_linear=not llama,
        add_qkv_bias=architecture.add_qkv_bias,
        qk_layernorm=architecture.qk_layernorm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )
    return [
        GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(
                normalization=config.normalization, qk_layernorm=architecture.qk_layernorm
            ),
            vocab_size=job["padded_vocab_size"],
            max_sequence_length=architecture.max_position_embeddings,
            pre_process=rank == 0 and stage == 0,
            post_process=rank == pipeline - 1 and stage == (virtual or 1) - 1,
            parallel_output=False,
            share_embeddings_and_output_weights=architecture.tie_embeddings,
            position_embedding_type="rope" if llama else "learned_absolute",
            rotary_base=int(architecture.rotary_base),
            vp_stage=stage if virtual else None,
        )
        for stage in range(virtual or 1)
    ]


def fill(model: GPTModel) -> None:
    """Give every weight the slice of a tensor that depends on its global name alone, however the model is cut."""
    state = model.sharded_state_dict()
    apply_factories(state)
    with torch.no_grad():
        for tensor in nested_values(state):
            if isinstance(tensor, ShardedTensor):
                generator = torch.Generator().manual_seed(zlib.crc32(tensor.key.encode()))
                whole = torch.randn(tensor.global_shape, generator=generator) * 0.1 + ("norm" in tensor.key)
                tensor.data.copy_(whole[place_in_whole(tensor)].reshape(tensor.data.shape))


def rank_file(run: str, directory: str) -> Path:
    """Where Megatron-LM keeps this rank's part."""
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    return Path(run, directory, name, "model_optim_rng.pt")


def named(models: list[GPTModel]) -> dict[str, GPTModel]:
    return {"model": models[0]} if len(models) == 1 else {f"model{stage}": model for stage, model in enumerate(models)}


def save(models: list[GPTModel], architecture: Architecture, job: dict[str, Any]) -> None:
    arguments = megatron_arguments.to_arguments(architecture) | {
        "padded_vocab_size": job["padded_vocab_size"],
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_model_parallel_size": job.get("virtual_pipeline"),
        "expert_model_parallel_size": 1,
        "params_dtype": torch.float32,
        "transformer_impl": "local",
        "consumed_train_samples": 80,
    }
    state = {"args": argparse.Namespace(**arguments), "checkpoint_version": 3.0, "iteration": 20}
    state |= {name: model.state_dict_for_save_checkpoint() for name, model in named(models).items()}
    parameters = [parameter for model in models for parameter in model.parameters()]
    state["optimizer"] = torch.optim.AdamW(parameters).state_dict()
    state["rng_state"] = [{"np_rng_state": numpy.random.get_state(), "torch_rng_state": torch.get_rng_state()}]
    if parallel_state.get_data_parallel_rank() == 0:
        path = rank_file(job["save"], "iter_0000020")
        path.parent.mkdir(parents=True)
        torch.save(state, path)
    torch.distributed.barrier()
    Path(job["save"], "latest_checkpointed_iteration.txt").write_text("20")


def load(models: list[GPTModel], job: dict[str, Any]) -> None:
    """Every file holds just this rank's weights, under the names that the model has."""
    tracked = Path(job["load"], "latest_checkpointed_iteration.txt").read_text()
    directory = tracked if tracked == "release" else f"iter_{int(tracked):07d}"
    with torch.serialization.safe_globals([argparse.Namespace]):
        state = torch.load(rank_file(job["load"], directory), map_location="cpu", weights_only=True)
    assert state["checkpoint_version"] == 3.0
    assert state["args"].tensor_model_parallel_size == parallel_state.get_tensor_model_parallel_world_size()
    assert state["args"].pipeline_model_parallel_size == parallel_state.get_pipeline_model_parallel_world_size()
    for name, model in named(models).items():
        model.load_state_dict(state[name], strict=True)


def logits(models: list[GPTModel], tokens: torch.Tensor) -> torch.Tensor | None:
    """Logits float32 [batch, position, vocabulary] on the last pipeline rank, None on the others."""
    length = tokens.shape[1]
    positions = torch.arange(length).expand_as(tokens)
    mask = torch.ones(1, 1, length, length).tril() < 0.5
    pipeline = parallel_state.get_pipeline_model_parallel_world_size()
    here = parallel_state.get_pipeline_model_parallel_rank()
    ranks = torch.distributed.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    hidden = torch.empty(length, tokens.shape[0], models[0].config.hidden_size)
    result = None
    for number in range(pipeline * len(models)):
        stage, rank = divmod(number, pipeline)
        before = (rank - 1) % pipeline
        if rank == here:
            if number and pipeline > 1:
                torch.distributed.recv(hidden, src=ranks[before])
            models[stage].eval().set_input_tensor(hidden if number else None)
            with torch.no_grad():
                result = models[stage](tokens, positions, mask)
            if number < pipeline * len(models) - 1:
                hidden = result.contiguous()
                if pipeline > 1:
                    torch.distributed.send(hidden, dst=ranks[(rank + 1) % pipeline])
    return result.float() if here == pipeline - 1 and result is not None else None


def run(job: dict[str, Any]) -> None:
    if "convert" in job:
        if torch.distributed.get_rank() == 0:
            source, destination, layout = job["convert"]
            conversion.convert(Request(source, "megatron-legacy", destination, legacy_target=LegacyTarget(*layout)))
        torch.distributed.barrier()
        return
    tensor, pipeline = job.get("tensor_parallel", 1), job.get("pipeline_parallel", 1)
    parallel_state.initialize_model_parallel(tensor, pipeline, job.get("virtual_pipeline"))
    megatron_random.model_parallel_cuda_manual_seed(1)
    architecture = Architecture.from_record(job["architecture"])
    models = chunks(architecture, job)
    if "load" in job:
        load(models, job)
    else:
        for model in models:
            fill(model)
        if architecture.tie_embeddings and pipeline > 1:
            share_embedding(models)
    if "save" in job:
        save(models, architecture, job)
    if "logits" in job:
        found = logits(models, torch.tensor(job["tokens"]))
        if found is not None and parallel_state.get_tensor_model_parallel_rank() == 0:
            numpy.save(job["logits"], found.numpy())
    leave_groups()


def share_embedding(models: list[GPTModel]) -> None:
    """What Megatron-LM does before training: the last stage gets the first one's embedding."""
    if parallel_state.is_pipeline_first_stage() or parallel_state.is_pipeline_last_stage():
        model = models[0] if parallel_state.is_pipeline_first_stage() else models[-1]
        weight = model.shared_embedding_or_output_weight().data
        group = parallel_state.get_embedding_group()
        first = torch.distributed.get_process_group_ranks(group)[0]
        torch.distributed.broadcast(weight, src=first, group=group)


def main() -> None:
    jobs, rank, world_size, rendezvous = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=int(rank), world_size=int(world_size))
    without_transformer_engine()
    for job in json.loads(Path(jobs).read_text()):
        run(job)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
