"""TorchTitan: a DCP checkpoint of the model under TorchTitan's names, the optimizer state, and the trainer's counters.

TorchTitan stores no model configuration in a checkpoint. It is read from the `run.json` that lt-convert writes, or from a Hugging
Face `config.json` in the checkpoint, in the directory of the `step-*` directories, or in the run's. It is not guessed from the
shapes: Llama 3 8B and 3.1 8B have the same, and TorchTitan's own 1B has another RoPE scaling factor than Meta's.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lt_convert import formats
from lt_convert.containers import dcp, torch_checkpointing
from lt_convert.containers.dcp import METADATA, Contents, Entry
from lt_convert.formats import adamw_state, beside_model, range_checksums
from lt_convert.formats.checkpoint import Source, Target
from lt_convert.formats.directories import TORCHTITAN_STEP, configuration_directories, listing, steps_directory
from lt_convert.formats.torchtitan import optimizer_state
from lt_convert.tensors.blocks import TensorReader, flat
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, zeros
from lt_convert.tokenizers import discovery
from lt_convert.weights import families
from lt_convert.weights.mapping import PADDING, ROPE_BUFFERS, TORCHTITAN, TORCHTITAN_2025, Model, is_balancing_bias
from lt_convert.weights.tensor_names import abbreviated
from lt_shared import version_of
from lt_shared.console import BadConfig, BadData, UsageError, warn
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import COMMON, RunRecord
from lt_shared.files import strict_json
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface.shared_experts import GROUP_SCORE_TOPK
from lt_shared.models.rope_scaling import RopeScaling, YarnScaling

TABLE = TORCHTITAN
CONFIG = "config.json"
EMBEDDING = "tok_embeddings.weight"
STEP = "train_state.step"
# Of the norms in TorchTitan's configurations of DeepSeek.
EPSILON = 1e-5

# Until the spring of 2025 the model's keys began with this.
_MODEL_PREFIX = "model."
_STATE = re.compile(r"(optimizer|lr_scheduler|dataloader|train_state)(\.|$).*")
# Checkpoints before 0.3 have wq, wk and wv in `attention` itself, and experts in `moe`.
_BIAS = re.compile(r".*\.moe\.expert_bias(_E)?")
# Other programs that write DCP checkpoints, by the names of their tensors, with the remedy.
_OTHER_PROGRAMS = (
    (
        re.compile(r"(model\.)?blocks\.\d+\.attention\.(w_q|w_qkv|w_out)\.weight"),
        "the tensors of OLMo-core, without its settings",
        "name the directory above, which has config.json and model_and_optim",
    ),
    (
        re.compile(r"(\w+\.)*(embed_tokens|wte|word_embeddings|embed_in)\.weight"),
        "weights in shards under transformers' names, as Accelerate and FSDP save them (SHARDED_STATE_DICT), which are not read",
        "join them: accelerate merge-weights DIR NEW, and put the model's config.json into NEW",
    ),
)
_SINCE_2026 = re.compile(r".*\.(qkv_linear|routed_experts)\..*")


def recognise(names: Sequence[str]) -> bool:
    # Megatron's torch_dist has a `.metadata`, too, with metadata.json or common.pt beside it.
    return (METADATA in names and "metadata.json" not in names and COMMON not in names) or torch_checkpointing.recognise(names)


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData for anything malformed, and when no model configuration is found for the checkpoint."""
    names = listing(directory)
    contents = dcp.read(directory, files) if METADATA in names else None
    tensors = model_tensors(contents) if contents else _named(torch_checkpointing.read(directory, files))
    if EMBEDDING not in tensors:
        raise _foreign(directory, contents.entries if contents else tensors)
    saved = _record(directory, names, files)
    architecture = saved.architecture if saved else _configuration(directory, tensors, files)
    padding = _padding(contents) if contents else {}
    padded = architecture.padded_vocab_size()
    if saved:
        padded = saved.padded_vocab_size
    model = Model(architecture, padded)
    family = families.family_of(architecture)
    tensors = _without_foreign_biases(tensors, architecture, directory, files)
    table = TORCHTITAN if any(_SINCE_2026.fullmatch(name) for name in tensors) else TORCHTITAN_2025
    step = contents.object(STEP) if contents and STEP in contents.objects else None
    states = [key for key in (*contents.entries, *contents.objects) if _STATE.fullmatch(key) and key != STEP] if contents else []
    run = directory if saved else steps_directory(directory)
    tokenizer = discovery.of_run(run, saved.tokenizer if saved else None, files)
    return Source(
        directory=directory,
        format=formats.TORCHTITAN.name,
        table=table,
        model=model,
        tensors=family.to_canonical(table, model, tensors, directory) | padding,
        aliases=tuple(family.aliases(table, model, tensors)),
        tokenizer=tokenizer,
        **beside_model.stored_fields(formats.TORCHTITAN.name, run, names, tokenizer, files),
        iteration=step if type(step) is int else _step(directory),
        loss=saved.loss if saved else None,
        optimizer=optimizer_state.from_torchtitan(contents, table, model, directory) if contents else None,
        left_out=tuple(states or torch_checkpointing.other_items(names)),
        details={"files": len({location.file for location in contents.locations.values()}) if contents else len(names) - 1},
    )


def _padding(contents: Contents) -> dict[str, Tensor]:
    """The padding rows of the vocabulary that a conversion stored."""
    return {key: contents.tensor(key) for key in contents.entries if key.startswith(PADDING) and ".state." not in key}


def _foreign(directory: str, keys: Iterable[str]) -> BadData:
    """The error for a checkpoint of another program, which is named by the names of its tensors."""
    for pattern, program, remedy in _OTHER_PROGRAMS:
        if any(pattern.fullmatch(key) for key in keys):
            return BadData(f"{directory}: {program}", remedy)
    return BadData(f"{directory}: has no {EMBEDDING}: not a checkpoint of one of TorchTitan's language models")


def model_tensors(contents: Contents) -> dict[str, Tensor]:
    """The model's tensors: all but training state, buffers, and padding rows that a conversion stored."""
    keys = [key for key in contents.entries if not _STATE.fullmatch(key) and not key.startswith(PADDING)]
    return _named({key: contents.tensor(key) for key in keys if not re.fullmatch(ROPE_BUFFERS, key.removeprefix(_MODEL_PREFIX))})


def _named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without buffers and without the prefix of older checkpoints."""
    prefix = _MODEL_PREFIX if EMBEDDING not in tensors and _MODEL_PREFIX + EMBEDDING in tensors else ""
    named = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if not re.fullmatch(ROPE_BUFFERS, name)}


def _without_foreign_biases(
    tensors: Mapping[str, Tensor], architecture: Architecture, directory: str, files: Files
) -> dict[str, Tensor]:
    """TorchTitan balances the experts of every family by biases; where the model's own router has none, they are left out, as
    TorchTitan's export leaves them out."""
    biases = [] if architecture.moe_router_enable_expert_bias else [name for name in tensors if _BIAS.fullmatch(name)]
    reader = TensorReader(files)
    moved = [name for name in biases if any(reader.rows(flat(tensors[name]), 0, tensors[name].shape[0]).tobytes())]
    if moved:
        warn(
            f"{directory}: {abbreviated(moved)} are not zero, and the router of {architecture.name} has no balancing biases:"
            " left out, so that it may choose other experts"
        )
    return {name: tensor for name, tensor in tensors.items() if name not in set(biases)}


def _absent_biases(architecture: Architecture) -> list[Entry]:
    """Zeros for the biases that TorchTitan's loader wants of every layer with experts."""
    experts = architecture.num_experts
    if not experts or architecture.moe_router_enable_expert_bias:
        return []
    names = [f"layers.{layer}.moe.expert_bias_E" for layer in range(architecture.num_layers) if architecture.has_experts(layer)]
    return [Entry.whole(name, zeros("float32", (experts,)).named(name)) for name in names]


def _record(directory: str, names: Sequence[str], files: Files) -> RunRecord | None:
    """The `run.json` of lt-convert."""
    if checkpoint_layout.RECORD not in names:
        return None
    path = f"{directory}/{checkpoint_layout.RECORD}"
    return RunRecord.parse(files.read(path, 0, files.size_bytes(path)), path)


def _configuration(directory: str, tensors: Mapping[str, Tensor], files: Files) -> Architecture:
    """The architecture in the first config.json of `configuration_directories`. Raises BadData when there is none."""
    candidates = configuration_directories(directory)
    for candidate in candidates:
        if CONFIG not in listing(candidate):
            continue
        path = f"{candidate}/{CONFIG}"
        try:
            config = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path))))
            return huggingface.from_config(config, candidate.rsplit("/", 1)[-1])
        except (ValueError, TypeError) as error:
            raise BadData(f"{path}: not a model configuration: {error}") from None
        except BadConfig as error:
            raise BadData(f"{path}: {error}", error.hint) from None
    rows, hidden = tensors[EMBEDDING].shape
    raise BadData(
        f"{directory}: TorchTitan does not store the model's configuration (this one has {rows} x {hidden} embeddings)",
        f"put the {CONFIG} of the model (the one in TorchTitan's hf_assets_path) into {candidates[-1]}",
    )


def _step(directory: str) -> int | None:
    """The number of training steps in the directory's name."""
    match = TORCHTITAN_STEP.fullmatch(directory.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def outputs(target: Target) -> list[OutputFile]:
    """A checkpoint for TorchTitan's `checkpoint.initial_load_path`, `.metadata` last."""
    model, source = target.model, target.source
    _check_supported(model.architecture, source.directory)
    family = families.family_of(model.architecture)
    canonical = _weights(target)
    tensors = family.from_canonical(TORCHTITAN, model, canonical, source.directory)
    entries = [Entry.whole(name, tensor) for name, tensor in tensors.items()] + _absent_biases(model.architecture)
    entries += [Entry.whole(name, tensor) for name, tensor in canonical.items() if name.startswith(PADDING)]
    objects: dict[str, Any] = {}
    if source.optimizer:
        moments, objects = optimizer_state.to_torchtitan(source.optimizer, model, source.iteration or 0, source.directory)
        entries += moments
    files = dcp.outputs(entries, objects)
    record = RunRecord(
        architecture=model.architecture,
        padded_vocab_size=model.padded_vocab_size,
        iteration=source.iteration or 0,
        consumed_samples=0,
        tokenizer=discovery.recorded(source.tokenizer, target.destination),
        dtype=tensors[EMBEDDING].dtype,
        versions={"lt-convert": version_of("lt-convert")},
        files={output.name: output.size_bytes for output in files},
        loss=source.loss,
    )
    run_record = OutputFile(checkpoint_layout.RECORD, (record.to_bytes(),))
    beside = [run_record, range_checksums.summary("", [*files, run_record]), *discovery.outputs(source.tokenizer)]
    beside += beside_model.outputs(source.beside, source.special_ids, source.tokenizer)
    return [*files[:-1], *beside, files[-1]]


def _weights(target: Target) -> Mapping[str, Tensor]:
    """The weights that training resumes from: the optimizer's fp32 main weights if there are any, unless --dtype is given."""
    source = target.source
    parameters = ((name, tensor) for name, tensor in target.tensors.items() if not is_balancing_bias(name))
    is_cast = any(tensor.dtype != source.tensors[name].dtype for name, tensor in parameters)
    main_weights = source.optimizer.tensors.get(adamw_state.PARAM) if source.optimizer else None
    return target.tensors if is_cast or main_weights is None else {**target.tensors, **main_weights}


def _check_supported(architecture: Architecture, origin: str) -> None:
    """Raises UsageError for a model that TorchTitan would compute differently, and warns where its own configurations do."""
    lacks = _lacking(architecture)
    if lacks:
        raise UsageError(f"{origin}: {lacks}", "convert it to hf or megatron-dist")
    if architecture.latent_attention and architecture.norm_epsilon != EPSILON:
        warn(
            f"{origin}: TorchTitan's own configurations of DeepSeek have norms with an epsilon of {EPSILON:g}:"
            f" give yours {architecture.norm_epsilon:g}{_and_mscale(architecture)}"
        )


def _lacking(architecture: Architecture) -> str | None:
    """Return a sentence on the part of the architecture that TorchTitan's model of the family lacks, or None."""
    scaling, theirs = architecture.rope_scaling, f"TorchTitan's {huggingface.model_type(architecture)}"
    if architecture.sliding_window is not None and not architecture.attention_sinks:
        return f"attends to {architecture.sliding_window} tokens, and in TorchTitan only gpt-oss has a sliding window"
    if architecture.moe_router_num_groups and architecture.group_score_topk != GROUP_SCORE_TOPK:
        return f"scores a group of experts by its best {architecture.group_score_topk}, {theirs} by its best {GROUP_SCORE_TOPK}"
    if isinstance(scaling, YarnScaling):
        magnitude = _yarn_magnitude(architecture, scaling)
        if not math.isclose(scaling.magnitude, magnitude):
            return f"YaRN multiplies rotated queries and keys by {scaling.magnitude:.6g}, in {theirs} by {magnitude:.6g}"
    elif scaling and not (isinstance(scaling, RopeScaling) and _pairs_adjacent_channels(architecture)):
        return f"its rotary positions have a scaling ({scaling.rope_type}) that {theirs} lacks"
    return None


def _yarn_magnitude(architecture: Architecture, scaling: YarnScaling) -> float:
    """What TorchTitan multiplies rotated queries and keys by: YaRN's usual magnitude in gpt-oss, and nothing in other models.

    Its DeepSeek multiplies the scores, by a factor that is DeepSeek's.
    """
    usual = dataclasses.replace(scaling, mscale=None, mscale_all_dim=None, attention_factor=None)
    return usual.magnitude if architecture.attention_sinks else 1.0


def _pairs_adjacent_channels(architecture: Architecture) -> bool:
    """Return whether RoPE pairs adjacent channels, as TorchTitan's Llama and DeepSeek do with Llama 3.1's scaling."""
    return not (architecture.qk_layernorm or architecture.attention_sinks)


def _and_mscale(architecture: Architecture) -> str:
    """The `mscale` that a configuration of TorchTitan needs, which takes DeepSeek's `mscale_all_dim` for it."""
    scaling = architecture.rope_scaling
    return f", and an mscale of {scaling.mscale_all_dim or 0:g}" if isinstance(scaling, YarnScaling) else ""
