"""What is to be converted: find the checkpoint, recognise its format, and describe its tensors without reading them."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_convert import record, safetensors_files, torch_dist
from lt_convert.llama import EMBEDDING, LLAMA
from lt_convert.mapping import Model
from lt_convert.tensors import OpenFiles, Tensor
from lt_shared import checkpoint_layout, huggingface, manifest, megatron_arguments, storage, tokenizer_files
from lt_shared.architecture import Architecture, RopeScaling
from lt_shared.checkpoint_layout import RunRecord
from lt_shared.console import BadConfig, BadData, NoInput, warn
from lt_shared.manifest import Checkpoint, Dataset
from lt_shared.tokenizer_files import TokenizerFiles

HF = "hf"
MEGATRON_DIST = "megatron-dist"
CONFIG = "config.json"
PADDING_FILE = "padding.safetensors"

# Megatron's settings that change results and have no place in a Llama configuration.
REQUIRED_ARGUMENTS = {
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "rotary_seq_len_interpolation_factor": None,
    "apply_layernorm_1p": False,
    "window_size": None,
}
# Buffers that Hugging Face's older Llama files carry; transformers computes them itself.
COMPUTED = ".rotary_emb.inv_freq"


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint: where it is, its model, and its tensors under canonical names.

    `left_out` are the keys of its training state, which no other format here has a place for.
    """

    directory: Path
    format: str
    model: Model
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerFiles | None
    iteration: int | None = None
    loss: float | None = None
    left_out: tuple[str, ...] = ()


def locate(argument: str) -> tuple[Path, str]:
    """The checkpoint directory and format that SRC means: a directory, a run, or the last checkpoint of a manifest."""
    if argument == "-" or argument.startswith("@"):
        argument = _last_checkpoint(argument)
    storage.require_local(argument, "lt-convert")
    path = Path(argument)
    if not path.is_dir():
        raise NoInput(f"{path}: no such directory")
    if (path / checkpoint_layout.TRACKER).is_file() or (path / torch_dist.METADATA).is_file():
        return checkpoint_layout.resolve(path), MEGATRON_DIST
    if (path / CONFIG).is_file():
        return path, HF
    if any(path.glob("*.distcp")):
        raise BadData(f"{path / torch_dist.METADATA}: missing", "the checkpoint is incomplete: use another one or copy it again")
    raise NoInput(
        f"{path}: no checkpoint that is known here",
        f"expected {CONFIG} with safetensors, {torch_dist.METADATA} with .distcp files, or {checkpoint_layout.TRACKER}",
    )


def _last_checkpoint(argument: str) -> str:
    origin = "standard input" if argument == "-" else argument[1:]
    entries = manifest.read([argument])
    last = entries[-1]
    if isinstance(last, Dataset) and last == Dataset(last.prefix):
        return last.prefix
    found: list[Checkpoint] = manifest.checkpoints(entries, origin)
    return found[-1].path


def open_source(directory: Path, source_format: str, files: OpenFiles) -> Source:
    """Describe the checkpoint. Raises BadData for anything malformed or outside the Llama family."""
    try:
        return _open_hf(directory, files) if source_format == HF else _open_megatron(directory, files)
    except BadConfig as error:
        raise BadData(str(error), error.hint) from None


def _open_hf(directory: Path, files: OpenFiles) -> Source:
    path = directory / CONFIG
    try:
        config = dict(json.loads(path.read_bytes()))
        architecture = _llama(huggingface.from_config(config, str(directory)), directory)
    except (ValueError, TypeError) as error:
        raise BadData(f"{path}: not a model configuration: {error}") from None
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise BadData(f"{path}: hidden_act is {activation!r}, the Llama family has 'silu'")
    tensors: dict[str, Tensor] = {
        name: tensor for name, tensor in safetensors_files.read_model(directory, files).items() if not name.endswith(COMPUTED)
    }
    padded = architecture.padded_vocab_size()
    if (directory / PADDING_FILE).is_file():
        padding = safetensors_files.read_file(directory / PADDING_FILE, files)
        tensors |= padding
        padded = architecture.vocab_size + max((tensor.shape[0] for tensor in padding.values()), default=0)
    made = record.read(directory)
    tokenizer = _find_tokenizer(directory / (made.tokenizer_file or "") if made else directory)
    return Source(directory, HF, Model(_named(architecture, directory), padded), tensors, tokenizer)


def _open_megatron(directory: Path, files: OpenFiles) -> Source:
    contents = torch_dist.read(directory, files)
    run = directory.parent
    place = checkpoint_layout.tokenizer_directory(run)
    tokenizer = _find_tokenizer(place)
    if (directory / checkpoint_layout.RECORD).is_file():
        saved = RunRecord.read(directory)
        if saved.tokenizer and tokenizer is None and saved.tokenizer.path:
            tokenizer = _find_tokenizer(Path(saved.tokenizer.path))
        if saved.tokenizer and tokenizer and tokenizer.sha256() != saved.tokenizer.sha256:
            raise BadData(
                f"{tokenizer.directory}: not the tokenizer {saved.tokenizer.name} that the checkpoint was trained with",
                "put the tokenizer's own files there",
            )
        architecture, loss = saved.architecture, saved.loss
    else:
        architecture, loss = _from_common(directory, run), None
    model = Model(_llama(architecture, directory), _padded_rows(contents, directory))
    tensors = LLAMA.from_megatron(model, contents.tensors, str(directory))
    return Source(
        directory,
        MEGATRON_DIST,
        model,
        tensors,
        tokenizer,
        checkpoint_layout.iteration_of(directory),
        loss,
        tuple(contents.left_out),
    )


def _llama(architecture: Architecture, directory: Path) -> Architecture:
    """`architecture`, when it is one that the table of tensors is made for."""
    kind = huggingface.model_type(architecture)
    if kind != "llama":
        raise BadData(f"{directory}: a model of the {kind or architecture.family} family, only plain llama is known here")
    return architecture


def _padded_rows(contents: torch_dist.Contents, directory: Path) -> int:
    embedding = contents.tensors.get("embedding.word_embeddings.weight")
    if embedding is None:
        raise BadData(f"{directory}: has no embedding.word_embeddings.weight: not a checkpoint of megatron-core's GPTModel")
    return embedding.shape[0]


def _from_common(directory: Path, run: Path) -> Architecture:
    """The architecture from Megatron's stored arguments."""
    arguments: dict[str, Any] = torch_dist.read_common(directory)["args"]
    name = f"{directory / torch_dist.COMMON}"
    for setting, value in REQUIRED_ARGUMENTS.items():
        if arguments.get(setting, value) != value:
            raise BadData(f"{name}: {setting} is {arguments[setting]!r}, which a Llama configuration cannot say")
    if arguments.get("vocab_size") is None and arguments.get("padded_vocab_size"):
        warn(f"{name}: the vocabulary size is not stored; all {arguments['padded_vocab_size']} rows are kept, padding included")
        arguments = arguments | {"vocab_size": arguments["padded_vocab_size"]}
    try:
        return _named(megatron_arguments.from_arguments(arguments, name), run)
    except TypeError as error:
        raise BadData(f"{name}: malformed Megatron arguments: {error}") from None


def _named(architecture: Architecture, directory: Path) -> Architecture:
    return dataclasses.replace(architecture, name=directory.resolve().name)


def _find_tokenizer(place: Path) -> TokenizerFiles | None:
    if not place.exists():
        return None
    try:
        return tokenizer_files.find(place)
    except NoInput:
        return None


def check_megatron_can(architecture: Architecture, origin: str) -> None:
    """Raises BadData for a RoPE scaling that Megatron would compute otherwise: only the factor is a setting there."""
    scaling = architecture.rope_scaling
    if scaling and scaling != RopeScaling(scaling.factor):
        raise BadData(f"{origin}: Megatron fixes every number of RoPE scaling but the factor, and this model has {scaling}")
    if architecture.rotary_base != int(architecture.rotary_base):
        raise BadData(f"{origin}: Megatron's rotary base is a whole number, and this model has {architecture.rotary_base}")


def dtype_of(tensors: Mapping[str, Tensor]) -> str:
    """The dtype that stands for the model: its embedding's."""
    return tensors[EMBEDDING].dtype
