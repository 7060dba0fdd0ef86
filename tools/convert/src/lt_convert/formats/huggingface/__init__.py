"""Hugging Face: `config.json`, tensors in one or several files, and the tokenizer. Only safetensors are written."""

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lt_convert.formats import HUGGINGFACE, beside_model
from lt_convert.formats.checkpoint import Source, Target
from lt_convert.formats.directories import TORCHTITAN_STEP, configuration_directories, listing
from lt_convert.formats.huggingface import consolidated, openai_original
from lt_convert.formats.huggingface.dequantization import dequantized
from lt_convert.formats.huggingface.lost_fields import lost_fields
from lt_convert.formats.huggingface.safetensors_files import INDEX as INDEX
from lt_convert.formats.huggingface.safetensors_files import SINGLE as SINGLE
from lt_convert.formats.huggingface.safetensors_files import file, model_files, read_file
from lt_convert.formats.huggingface.stored_weights import read_model, weight_files
from lt_convert.formats.huggingface.weight_quantization import Written, quantized
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.tokenizers import discovery, huggingface_tokenizer
from lt_convert.weights import families
from lt_convert.weights.mapping import HF, PADDING, Model, is_balancing_bias
from lt_shared.console import BadConfig, BadData, warn
from lt_shared.files import strict_json
from lt_shared.models import huggingface, quantization
from lt_shared.models.architecture import Architecture
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

TABLE = HF
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
# Named so that no loader looks at it: vLLM reads each *.safetensors of a directory without an index.
PADDING_FILE = "lt-convert.padding"
FORMER_PADDING_FILE = "padding.safetensors"
# The types whose published files stack the experts of a layer; mistral3 is Mistral 4 with a vision tower.
_STACKED_TYPES = ("gpt_oss", "mistral4", "mistral3")
_FUSED_EXPERTS = re.compile(r"(?P<layer>.*\.layers\.\d+\.mlp\.)experts\.(?P<part>gate_up_proj|down_proj)")
_ROUTER = re.compile(r"(?P<layer>.*\.layers\.\d+\.)mlp\.gate\.weight")
# Mixtral's names in published files: of the module, and of gate, up and down projections.
_MIXTRAL_MODULE, _MIXTRAL_PARTS = "block_sparse_moe.", ("w1", "w3", "w2")
_EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")


def recognise(names: Sequence[str]) -> bool:
    """A directory with `config.json` and weights. TorchTitan's last step may have weights alone, and an index."""
    return _has_model(names) or INDEX in names or consolidated.recognise(names)


def _has_model(names: Sequence[str]) -> bool:
    return CONFIG in names and bool(weight_files(names))


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData for anything malformed, and for models of an unsupported family."""
    names = listing(directory)
    if ADAPTER in names:
        raise BadData(f"{directory}: {ADAPTER}: transformers would add that adapter to the model", "merge it first, or remove it")
    is_consolidated = not _has_model(names) and consolidated.recognise(names)
    place = directory if is_consolidated else _place_of_config(directory, names)
    path = f"{place}/{consolidated.PARAMS if is_consolidated else CONFIG}"
    name = place.rstrip("/").rsplit("/", 1)[-1]
    stored_as: quantization.Quantization | None = None
    openai: dict[str, Any] | None = None
    try:
        if is_consolidated:
            config, stored = consolidated.read(directory, files)
        else:
            config = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path))))
            # MLX's own field: transformers has another one.
            if isinstance(config.get("quantization"), dict):
                raise BadConfig("quantized by MLX, which is not read", "use the model that was quantized")
            openai = config if openai_original.is_original(config) else None
            config = config if openai is None else openai_original.config_for_transformers(openai)
        architecture = huggingface.from_config(config, name)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadData(f"{path}: not a model configuration: {error}") from None
    except BadConfig as error:
        raise BadData(f"{path}: {error}", error.hint) from None
    if openai is not None:
        stored = openai_original.renamed(read_model(directory, files), openai, directory)
        stored_as = openai_original.quantization_of(stored)
    elif not is_consolidated:
        stored = read_model(directory, files)
        stored_as = quantization.of_config(config, directory)
    is_published_alone = is_consolidated or openai is not None
    named = _split_fused_experts(dequantized(stored, stored_as, directory), str(config.get("model_type")), directory)
    architecture = _without_absent_layers(architecture, named, directory)
    padding_file = next((name for name in (PADDING_FILE, FORMER_PADDING_FILE) if name in names), None)
    padding = None if padding_file is None else _padding(f"{directory}/{padding_file}", files)
    padded = architecture.padded_vocab_size()
    if padding is not None:
        padded = architecture.vocab_size + max((tensor.shape[0] for tensor in padding.values()), default=0)
    family = families.family_of(architecture)
    model = Model(architecture, padded)
    tensors = family.to_canonical(HF, model, named, directory)
    aliases = family.aliases(HF, model, named)
    tokenizer, beside = _tokenizer(directory, place, is_published_alone, files), beside_model.read(directory, files)
    stored_names = {path.rpartition("/")[2] for tensor in stored.values() for path in tensor.files}
    stored_names |= {consolidated.PARAMS, *consolidated.weight_files(names)} if is_consolidated else set()
    generation = f"{directory}/{huggingface_tokenizer.GENERATION}"
    generates = huggingface_tokenizer.GENERATION in names
    return Source(
        directory=directory,
        format=HUGGINGFACE.name,
        table=HF,
        model=model,
        tensors=tensors | (padding or {}),
        tokenizer=tokenizer,
        iteration=_step(directory),
        aliases=tuple(aliases),
        other_parts=tuple(name for name in named if re.fullmatch(family.other_parts, name)),
        special_ids=None
        if is_published_alone
        else {name: config[name] for name in huggingface_tokenizer.SPECIAL_IDS if name in config},
        generation=files.read(generation, 0, files.size_bytes(generation)) if generates else None,
        quantization=str(stored_as or ""),
        beside=beside,
        not_carried=(
            *beside_model.not_carried(HUGGINGFACE.name, directory, stored_names, tokenizer, beside),
            *(() if is_published_alone else lost_fields(config)),
        ),
        is_partial=is_consolidated or place != directory or weight_files(names)[0] not in (INDEX, SINGLE),
    )


def _place_of_config(directory: str, names: Sequence[str]) -> str:
    """The directory of `config.json`: the model's, or for a step of TorchTitan one of `configuration_directories`.

    Raises BadData when there is none.
    """
    if CONFIG in names:
        return directory
    candidates = configuration_directories(directory)
    for candidate in candidates:
        if CONFIG in listing(candidate):
            return candidate
    raise BadData(
        f"{directory}/{CONFIG}: missing: it has weights in Hugging Face's format, and no configuration",
        f"put the {CONFIG} of the model into {candidates[-1]}",
    )


def _step(directory: str) -> int | None:
    match = TORCHTITAN_STEP.fullmatch(directory.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def _tokenizer(directory: str, place: str, is_original: bool, files: Files) -> TokenizerFiles | None:
    """Find the tokenizer: beside the model, above the directory of OpenAI's or Meta's files, or in TorchTitan's run directory."""
    if place != directory:
        return discovery.beside_model(directory, files) or discovery.of_run(place, None, files)
    above, _, name = directory.rpartition("/")
    # A repository of Llama has more of the tokenizer above `original` than in it; Llama 2's tokenizer is above the model's files.
    places = [directory, above] if is_original else [directory]
    places = places[::-1] if name == openai_original.DIRECTORY else places
    candidates = (tokenizer for place in places if (tokenizer := discovery.beside_model(place, files)))
    return next(candidates, None)


def _split_fused_experts(tensors: Mapping[str, Tensor], model_type: str, origin: str) -> dict[str, Tensor]:
    """Split the experts of a layer, if one tensor holds them all, into the tensors of the published files.

    transformers 5 has them fused in memory. `save_pretrained` splits them, unless it is called with `save_original_format=False`
    or writes the slices of ranks (`distributed_checkpoint=True`). gpt-oss is published fused, and so is Mistral 4. Raises BadData
    for shapes that do not fit.
    """
    if model_type in _STACKED_TYPES or not any(_FUSED_EXPERTS.fullmatch(name) for name in tensors):
        return dict(tensors)
    is_mixtral = model_type == "mixtral"
    gate, up, down = _MIXTRAL_PARTS if is_mixtral else _EXPERT_PARTS
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match, router = _FUSED_EXPERTS.fullmatch(name), _ROUTER.fullmatch(name)
        if match is None:
            is_renamed = router is not None and is_mixtral
            separate[f"{router['layer']}{_MIXTRAL_MODULE}gate.weight" if router and is_renamed else name] = tensor
            continue
        if len(tensor.shape) != 3 or (match["part"] == "gate_up_proj" and tensor.shape[1] % 2):
            raise BadData(f"{origin}: {name} is {list(tensor.shape)}: not the experts of a layer")
        layer = match["layer"].removesuffix("mlp.") + _MIXTRAL_MODULE if is_mixtral else match["layer"]
        for number, expert in enumerate(tensor.slices()):
            prefix = f"{layer}experts.{number}."
            if match["part"] == "down_proj":
                separate[f"{prefix}{down}.weight"] = expert
                continue
            half = expert.shape[0] // 2
            separate[f"{prefix}{gate}.weight"] = expert.take(0, range(half))
            separate[f"{prefix}{up}.weight"] = expert.take(0, range(half, 2 * half))
    return separate


def _without_absent_layers(architecture: Architecture, tensors: Mapping[str, Tensor], origin: str) -> Architecture:
    """Remove multi-token prediction layers that the files lack: transformers drops them when it saves a model."""
    layers = range(architecture.num_layers, architecture.num_layers + architecture.mtp_num_layers)
    if not layers or any(f"layers.{layer}." in name for layer in layers for name in tensors):
        return architecture
    warn(f"{origin}: {CONFIG} names {len(layers)} multi-token prediction layers that the files lack: converted without them")
    return dataclasses.replace(architecture, mtp_num_layers=0)


def _padding(path: str, files: Files) -> dict[str, Tensor]:
    """The padding rows of the vocabulary, which a conversion to this format stored in a file of their own."""
    tensors = read_file(path, files)
    for name, tensor in tensors.items():
        if not name.startswith(PADDING) or not tensor.shape:
            raise BadData(
                f"{path}: {name} is not a padding tensor of a vocabulary", "delete the file: padding rows then become zeros"
            )
    return tensors


def outputs(target: Target) -> list[OutputFile]:
    """The files, `config.json` last: without it no tool takes the directory for a model."""
    architecture = target.model.architecture
    tensors = families.family_of(architecture).from_canonical(HF, target.model, target.tensors, target.source.directory)
    padding = {name: tensor for name, tensor in target.tensors.items() if name.startswith(PADDING)}
    stored, quantization_config = _as_stored(tensors, target)
    files = model_files(stored)
    if padding:
        files.append(file(PADDING_FILE, padding))
    special: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    written: dict[str, bytes] = {}
    if target.source.tokenizer:
        with tempfile.TemporaryDirectory() as directory:
            sizes = (architecture.max_position_embeddings, architecture.vocab_size)
            special = huggingface_tokenizer.write(target.source.tokenizer, Path(directory), *sizes)
            paths = [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
            written = {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}
    special, written[huggingface_tokenizer.GENERATION] = _special_ids(
        target.source, special, written.get(huggingface_tokenizer.GENERATION)
    )
    written = dict(target.source.beside) | written
    files += [OutputFile(name, (content,)) for name, content in written.items()]
    dtype = _dtype(tensors, target.source.directory)
    config = huggingface.to_config(architecture, dtype) | special | quantization_config
    return [*files, OutputFile(CONFIG, (_json(config),))]


def _dtype(tensors: Mapping[str, Tensor], origin: str) -> str:
    """Return the dtype with the most bytes, which transformers uses for all tensors; warn of other dtypes.

    Balancing biases are float32 in every model, and stay float32 when transformers loads them.
    """
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        if not is_balancing_bias(name):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size_bytes
    dtype = max(sizes, key=lambda other: sizes[other])
    unlike = [f"{other} ({sizes[other]:,} bytes)" for other in sorted(sizes) if other != dtype]
    if unlike:
        warn(f"{origin}: its tensors are stored as {dtype} and as {', '.join(unlike)}: {CONFIG} has dtype {dtype}, to which "
             "transformers casts all of them")  # fmt: skip
    return dtype


def _as_stored(tensors: Mapping[str, Tensor], target: Target) -> tuple[Mapping[str, Written], dict[str, Any]]:
    """The tensors of the files, and what config.json says of how they are quantized."""
    if not target.quantize:
        return tensors, {}
    written, config = quantized(tensors, target.source.directory)
    return written, {quantization.FIELD: config}


def _special_ids(
    source: Source, of_tokenizer: Mapping[str, Any], tokenizer_generation: bytes | None
) -> tuple[dict[str, Any], bytes]:
    """The ids of special tokens for `config.json`, and the content of `generation_config.json`.

    A model of this format keeps its own ids. Other models get the ids in `tokenizer_generation`, the file beside the tokenizer,
    then the ids in the tokenizer's files. An id outside the vocabulary is not written: transformers would look up an embedding
    row that does not exist.
    """
    vocab_size = source.model.architecture.vocab_size
    content = source.generation or tokenizer_generation
    path = f"{source.directory}/{huggingface_tokenizer.GENERATION}"
    generation: dict[str, Any] = {}
    if content is not None:
        try:
            generation = dict(strict_json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise BadData(f"{path}: not a JSON object: {error}", "mend or delete it") from None
    generation_ids = {name: generation[name] for name in huggingface_tokenizer.SPECIAL_IDS if name in generation}
    checked = huggingface_tokenizer.check_ids(generation_ids, vocab_size, path)
    if source.special_ids is None:
        special = huggingface_tokenizer.check_ids(of_tokenizer, vocab_size, "the tokenizer") | checked
    else:
        special = huggingface_tokenizer.check_ids(source.special_ids, vocab_size, f"{source.directory}/{CONFIG}")
    if content is None or checked != generation_ids:
        settings = {name: value for name, value in generation.items() if name not in generation_ids}
        ids = special if content is None else checked
        content = _json(settings | {name: value for name, value in ids.items() if value is not None})
    return special, content


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
