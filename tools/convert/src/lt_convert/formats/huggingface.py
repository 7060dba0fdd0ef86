"""Hugging Face: `config.json`, tensors in one or several safetensors files, and the tokenizer.

A safetensors file is eight bytes of header length, a JSON header, then the values of every tensor. The safetensors library is not
used: it reads whole tensors, and to write a file it needs all of its tensors in memory.
"""

import dataclasses
import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lt_convert.formats import openai_original
from lt_convert.formats.checkpoint import Source, Target
from lt_convert.formats.dequantization import dequantized
from lt_convert.formats.location import listing
from lt_convert.formats.quantization import Written, quantized
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import ITEM_BYTES, Tensor, tensor_in_files
from lt_convert.tokenizers import discovery, huggingface_tokenizer
from lt_convert.weights import families
from lt_convert.weights.mapping import HF, PADDING, Model
from lt_shared import huggingface, quantization, strict_json
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, BadData, warn
from lt_shared.tokenizer_files import TokenizerFiles

TABLE = HF
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_config.json"
# Named so that no loader looks at it: vLLM reads each *.safetensors of a directory without an index.
PADDING_FILE = "lt-convert.padding"
FORMER_PADDING_FILE = "padding.safetensors"
SHARD_BYTES = 5_000_000_000
MAXIMUM_HEADER_BYTES = 100_000_000

# The causal masks in GPT-2 files are booleans or bytes.
_CODES = {
    "BOOL": "uint8",
    "U8": "uint8",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
}
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}


def recognise(names: Sequence[str]) -> bool:
    return CONFIG in names and (SINGLE in names or INDEX in names or bool(openai_original.shards(names)))


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData for anything malformed, and for models of an unsupported family."""
    path = f"{directory}/{CONFIG}"
    try:
        config = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path))))
        openai = config if openai_original.is_original(config) else None
        config = config if openai is None else openai_original.config_for_transformers(openai, path)
        architecture = huggingface.from_config(config, directory.rstrip("/").rsplit("/", 1)[-1])
    except (ValueError, TypeError, RecursionError) as error:
        raise BadData(f"{path}: not a model configuration: {error}") from None
    except BadConfig as error:
        raise BadData(f"{path}: {error}", error.hint) from None
    names = listing(directory)
    if ADAPTER in names:
        raise BadData(f"{directory}: {ADAPTER}: transformers would add that adapter to the model", "merge it first, or remove it")
    stored = read_model(directory, files)
    if openai is not None:
        stored = openai_original.renamed(stored, openai, directory)
    stored_as = quantization.of_config(config, directory) if openai is None else openai_original.quantization_of(stored)
    found = dequantized(stored, stored_as, directory)
    architecture = _without_absent_layers(architecture, found, directory)
    padding_file = next((name for name in (PADDING_FILE, FORMER_PADDING_FILE) if name in names), None)
    padding = None if padding_file is None else _padding(f"{directory}/{padding_file}", files)
    padded = architecture.padded_vocab_size()
    if padding is not None:
        padded = architecture.vocab_size + max((tensor.shape[0] for tensor in padding.values()), default=0)
    family = families.family_of(architecture)
    model = Model(architecture, padded)
    tensors = family.to_canonical(HF, model, found, directory)
    aliases = family.aliases(HF, model, found)
    generation = f"{directory}/{huggingface_tokenizer.GENERATION}"
    generates = huggingface_tokenizer.GENERATION in names
    return Source(
        directory=directory,
        format="hf",
        table=HF,
        model=model,
        tensors=tensors | (padding or {}),
        tokenizer=_tokenizer(directory, openai is not None, files),
        aliases=tuple(aliases),
        other_parts=tuple(name for name in found if re.fullmatch(family.other_parts, name)),
        special_ids=None if openai else {name: config[name] for name in huggingface_tokenizer.SPECIAL_IDS if name in config},
        generation=files.read(generation, 0, files.size_bytes(generation)) if generates else None,
        quantization=str(stored_as or ""),
    )


def _tokenizer(directory: str, is_original: bool, files: Files) -> TokenizerFiles | None:
    """That beside the model; OpenAI's own files have it in the directory above."""
    above, _, name = directory.rpartition("/")
    found = discovery.beside_model(directory, files)
    if found is None and is_original and name == openai_original.DIRECTORY:
        return discovery.beside_model(above, files)
    return found


def _without_absent_layers(architecture: Architecture, tensors: Mapping[str, Tensor], origin: str) -> Architecture:
    """Without multi-token prediction layers where the files have none of them: transformers drops them when it saves a model."""
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


def read_model(directory: str, files: Files) -> dict[str, Tensor]:
    """All tensors of a model in one file or in shards with an index. Raises BadData for a missing or damaged file."""
    path = f"{directory}/{INDEX}"
    names = listing(directory)
    if INDEX not in names:
        of_openai = openai_original.shards(names) if SINGLE not in names else []
        return _joined(directory, of_openai or [SINGLE], files)
    try:
        weight_map = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path)))["weight_map"])
        shards = sorted(set(weight_map.values()))
        outside = [name for name in shards if "/" in name or "\0" in name or name in ("", ".", "..")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{path}: not an index of safetensors: {error}") from None
    if outside:
        raise BadData(f"{path}: names a file outside the directory: {outside[0]!r}")
    if SINGLE in names and shards != [SINGLE]:
        raise BadData(
            f"{directory}: has a {SINGLE} and a {INDEX} of other files, which may be two models",
            "remove the one that is not meant: transformers would load the single file",
        )
    tensors = _joined(directory, shards, files)
    # transformers takes each tensor from the file that the index names, and none that it does not name.
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].files not in ([], [f"{directory}/{shard}"]):
            raise BadData(f"{directory}/{shard}: has no {name}, which the index promises")
    unknown = sorted(set(tensors) - set(weight_map))
    if unknown:
        raise BadData(f"{path}: does not name {unknown[0]}, which is in {tensors[unknown[0]].files[0].rpartition('/')[2]}")
    return tensors


def _joined(directory: str, shards: Sequence[str], files: Files) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        found = read_file(f"{directory}/{shard}", files)
        repeated = sorted(set(found) & set(tensors))
        if repeated:
            raise BadData(f"{directory}/{shard}: {repeated[0]} is in another shard too")
        tensors |= found
    return tensors


def read_file(path: str, files: Files) -> dict[str, Tensor]:
    """The tensors of one file. Raises BadData when the header is malformed or does not describe the file from end to end."""
    file_bytes = files.size_bytes(path)
    if file_bytes < 8:
        raise BadData(f"{path}: not a safetensors file, or cut off inside its header")
    length = int.from_bytes(files.read(path, 0, 8), "little")
    if length > min(MAXIMUM_HEADER_BYTES, file_bytes - 8):
        raise BadData(f"{path}: not a safetensors file, or cut off inside its header")
    tensors: dict[str, Tensor] = {}
    ends = []
    try:
        encoded = files.read(path, 8, length)
        header = strict_json.loads(encoded)
        described = header.pop("__metadata__", {})
        is_text = type(described) is dict and all(type(each) is str for pair in described.items() for each in pair)
        if encoded[:1] != b"{" or not is_text:
            raise ValueError("it does not begin with {, or its metadata are not text")
        for name, entry in header.items():
            if set(entry) != {"dtype", "shape", "data_offsets"}:
                raise ValueError(f"{name} has other fields than dtype, shape and data_offsets")
            start, stop = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if not all(type(size) is int and size >= 0 for size in (start, stop, *shape)):
                raise BadData(f"{path}: {name} has a size or offset that is not a natural number")
            if entry["dtype"] not in _CODES:
                raise BadData(f"{path}: {name} is stored as {entry['dtype']}, known here are {', '.join(_CODES)}")
            dtype = _CODES[entry["dtype"]]
            if stop - start != math.prod(shape) * ITEM_BYTES[dtype]:
                raise BadData(f"{path}: {name} has {stop - start} bytes, which do not fit its shape {list(shape)}")
            tensors[name] = tensor_in_files(name, dtype, shape, [((0,) * len(shape), shape, path, 8 + length + start)])
            ends.append((start, stop, name))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{path}: malformed safetensors header: {error}") from None
    end = 0
    for start, stop, name in sorted(ends):
        if start != end:
            raise BadData(f"{path}: {name} overlaps another tensor, or there is a gap before it")
        end = stop
    if file_bytes != 8 + length + end:
        raise BadData(f"{path}: {file_bytes} bytes, its header says {8 + length + end}", INCOMPLETE)
    return tensors


def outputs(target: Target) -> list[OutputFile]:
    """The files, `config.json` last: without it no tool takes the directory for a model."""
    architecture = target.model.architecture
    tensors = families.family_of(architecture).from_canonical(HF, target.model, target.tensors, target.source.directory)
    padding = {name: tensor for name, tensor in target.tensors.items() if name.startswith(PADDING)}
    stored, quantization_config = _as_stored(tensors, target)
    made = model_files(stored)
    if padding:
        made.append(file(PADDING_FILE, padding))
    special: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    written: dict[str, bytes] = {}
    if target.source.tokenizer:
        with tempfile.TemporaryDirectory() as directory:
            sizes = (architecture.max_position_embeddings, architecture.vocab_size)
            special = huggingface_tokenizer.write(target.source.tokenizer, Path(directory), *sizes)
            written = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}
    special, written[huggingface_tokenizer.GENERATION] = _special_ids(
        target.source, special, written.get(huggingface_tokenizer.GENERATION)
    )
    made += [OutputFile(name, (content,)) for name, content in written.items()]
    dtype = next(iter(tensors.values())).dtype
    config = huggingface.to_config(architecture, dtype) | special | quantization_config
    return [*made, OutputFile(CONFIG, (_json(config),))]


def _as_stored(tensors: Mapping[str, Tensor], target: Target) -> tuple[Mapping[str, Written], dict[str, Any]]:
    """The tensors of the files, and what config.json says of how they are quantized."""
    if not target.quantize:
        return tensors, {}
    written, config = quantized(tensors, target.source.directory)
    return written, {quantization.FIELD: config}


def _special_ids(source: Source, of_tokenizer: Mapping[str, Any], kept: bytes | None) -> tuple[dict[str, Any], bytes]:
    """The ids of special tokens for `config.json`, and the content of `generation_config.json`.

    A model of this format keeps its own ids. Other models get those in the `generation_config.json` that was `kept` with the
    tokenizer, then those in the tokenizer's files. An id outside the vocabulary is not written: transformers would look up an
    embedding row that does not exist.
    """
    vocab_size = source.model.architecture.vocab_size
    content = source.generation or kept
    path = f"{source.directory}/{huggingface_tokenizer.GENERATION}"
    generation: dict[str, Any] = {}
    if content is not None:
        try:
            generation = dict(strict_json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise BadData(f"{path}: not a JSON object: {error}", "mend or delete it") from None
    given = {name: generation[name] for name in huggingface_tokenizer.SPECIAL_IDS if name in generation}
    checked = huggingface_tokenizer.check_ids(given, vocab_size, path)
    if source.special_ids is None:
        special = huggingface_tokenizer.check_ids(of_tokenizer, vocab_size, "the tokenizer") | checked
    else:
        special = huggingface_tokenizer.check_ids(source.special_ids, vocab_size, f"{source.directory}/{CONFIG}")
    if content is None or checked != given:
        left = {name: value for name, value in generation.items() if name not in given}
        ids = special if content is None else checked
        content = _json(left | {name: value for name, value in ids.items() if value is not None})
    return special, content


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def model_files(tensors: Mapping[str, Written]) -> list[OutputFile]:
    """`tensors` in their order as one file, or as shards of about `SHARD_BYTES` with an index after them."""
    shards: list[dict[str, Written]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.size_bytes > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.size_bytes
    if len(shards) == 1:
        return [file(SINGLE, shards[0])]
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    weight_map = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
    total = sum(tensor.size_bytes for tensor in tensors.values())
    index = _json({"metadata": {"total_size": total}, "weight_map": weight_map})
    return [*(file(name, shard) for name, shard in zip(names, shards, strict=True)), OutputFile(INDEX, (index,))]


def file(name: str, tensors: Mapping[str, Written]) -> OutputFile:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor_name, tensor in tensors.items():
        end = offset + tensor.size_bytes
        header[tensor_name] = {"dtype": _CODE_OF[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    payloads = (Payload(tensor_name, tensor) for tensor_name, tensor in tensors.items())
    return OutputFile(name, (len(encoded).to_bytes(8, "little") + encoded, *payloads))
