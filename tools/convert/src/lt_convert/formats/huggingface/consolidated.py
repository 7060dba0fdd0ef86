"""Llama as Meta publishes it, and Mistral's models as Mistral does: consolidated files, with the sizes in `params.json`.

Both have the same tensor names, and rotary positions of adjacent channels. If a model was split over several GPUs, each of Meta's
files (`consolidated.00.pth`, `consolidated.01.pth` ...) has a slice of every matrix. Mistral's files have whole tensors. The
tensors get transformers' names and order of rows, so everything else follows the Hugging Face format.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.containers import torch_files
from lt_convert.formats.directories import listing
from lt_convert.formats.huggingface import stored_weights
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import Tensor, concatenate
from lt_convert.weights.mapping import MAXIMUM_HEADS_OR_EXPERTS
from lt_shared.console import BadConfig, BadData, NoInput
from lt_shared.files import strict_json

PARAMS = "params.json"
# Meta's files lie in this directory of a repository whose config.json has what `params.json` lacks.
DIRECTORY = "original"
_SLICES = re.compile(r"consolidated\.(\d{2})\.pth")
_SIZES = ("dim", "n_layers", "n_heads")
_OPTIONAL = (
    *("norm_eps", "multiple_of", "ffn_dim_multiplier", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "rope_theta"),
    *("sliding_window", "use_scaled_rope", "max_seq_len", "max_position_embeddings", "moe", "tied_embeddings", "max_batch_size"),
)
_MOE = {"num_experts", "num_experts_per_tok"}
# Fields of a config.json beside or above the files.
_FROM_CONFIG = ("max_position_embeddings", "rope_scaling", "rope_parameters", "rope_theta")
# Positions by the base of rotary positions, for files that do not say it: Llama 2, CodeLlama, Llama 3.
_POSITIONS = {10000.0: 4096, 1e6: 16384, 5e5: 8192}
_SCALED_POSITIONS = 131072
# Of Llama 3.2, with 1B and 3B parameters; Llama 3.1 has 8.
_SMALL_DIMS, _SMALL_FACTOR, _FACTOR = (2048, 3072), 32.0, 8.0
_NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.gate.weight": "block_sparse_moe.gate.weight",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"feed_forward\.(experts\.\d+\.w[123]\.weight)")
_BUFFER = "rope.freqs"
# Matrices that are cut into columns; all others are cut into rows.
_BY_COLUMNS = re.compile(r".*\.(wo|w2)\.weight")


def weight_files(names: Sequence[str]) -> list[str]:
    """The consolidated files of a directory with these names: Mistral's index or safetensors, or else Meta's files."""
    slices = sorted(name for name in names if _SLICES.fullmatch(name))
    return stored_weights.of_variant(names, stored_weights.CONSOLIDATED, "") or slices


def recognise(names: Sequence[str]) -> bool:
    return PARAMS in names and bool(weight_files(names))


def read(directory: str, files: Files) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model's `config.json` and tensors as transformers has them.

    Raises BadConfig for a setting that no model here has, BadData for files that are missing, damaged or malformed.
    """
    names = listing(directory)
    path = f"{directory}/{PARAMS}"
    params = _params(path, files)
    stored = weight_files(names)
    if _SLICES.fullmatch(stored[0]):
        tensors = _joined_slices(directory, stored, params, files)
    else:
        tensors = stored_weights.read_files(directory, stored, names, files)
    renamed = _renamed(tensors, params, directory)
    return _config(params, renamed, path) | _published(directory, files), renamed


def _params(path: str, files: Files) -> dict[str, Any]:
    try:
        params = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path))))
        moe = params.get("moe") or {}
        unknown = sorted(name for name in {*params} - {*_SIZES, *_OPTIONAL} if params[name] not in (None, False))
        sizes = [params[name] for name in _SIZES] + [params.get(name) or 1 for name in ("n_kv_heads", "head_dim")]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError("a size is no positive number")
        if params["n_layers"] * params["n_heads"] > MAXIMUM_HEADS_OR_EXPERTS:
            raise ValueError(f"{params['n_layers']} layers of {params['n_heads']} heads: no model is that large")
        if params.get("moe") and set(moe) != _MOE:
            raise ValueError(f"moe has not {' and '.join(sorted(_MOE))}")
        float(params["norm_eps"]), float(params.get("rope_theta") or 0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{path}: not the settings of a model of Meta or Mistral: {error}") from None
    if unknown:
        raise BadConfig(f"has {unknown[0]}, which no model here has", "use the repository's files for transformers")
    return params


def _joined_slices(directory: str, stored: Sequence[str], params: Mapping[str, Any], files: Files) -> dict[str, Tensor]:
    """Join the slices that Meta's files have. Vectors are the same in all files."""
    numbers = [int(match[1]) for name in stored if (match := _SLICES.fullmatch(name))]
    if numbers != list(range(len(numbers))):
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        raise BadData(f"{directory}/consolidated.{missing:02d}.pth: missing", INCOMPLETE)
    by_file = [torch_files.read_state_dict(f"{directory}/{name}", files) for name in stored]
    _check_last_slices(directory, by_file, params)
    joined: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for tensors in by_file for name in tensors):
        pieces = [tensors[name] for tensors in by_file if name in tensors]
        if len(pieces) not in (1, len(stored)) or len({(piece.shape, piece.dtype) for piece in pieces}) > 1:
            raise BadData(f"{directory}: {name} is in {len(pieces)} of {len(stored)} files, or differs in shape", INCOMPLETE)
        if len(pieces) == 1 or len(pieces[0].shape) < 2:
            joined[name] = pieces[0]
            continue
        is_narrow = name == "tok_embeddings.weight" and pieces[0].shape[1] * len(stored) == params["dim"]
        joined[name] = concatenate(name, 1 if is_narrow or _BY_COLUMNS.fullmatch(name) else 0, pieces)
    return joined


def _check_last_slices(directory: str, by_file: Sequence[Mapping[str, Tensor]], params: Mapping[str, Any]) -> None:
    """Raise BadData, naming the first missing file, if the files have fewer rows of the queries than the model's heads."""
    queries = by_file[0].get("layers.0.attention.wq.weight")
    rows = params["n_heads"] * (params.get("head_dim") or params["dim"] // params["n_heads"])
    if queries is None or len(queries.shape) != 2 or not queries.shape[0]:
        return
    count, remainder = divmod(rows, queries.shape[0])
    if not remainder and count > len(by_file):
        raise BadData(
            f"{directory}/consolidated.{len(by_file):02d}.pth: missing: the model was split into {count} files", INCOMPLETE
        )


def _renamed(tensors: Mapping[str, Tensor], params: Mapping[str, Any], origin: str) -> dict[str, Tensor]:
    """The tensors under the names of transformers. An output layer that is the embedding is left out."""
    heads = {"attention.wq.weight": params["n_heads"], "attention.wk.weight": params.get("n_kv_heads") or params["n_heads"]}
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer = _LAYER.fullmatch(name)
        expert = _EXPERT.fullmatch(layer[2]) if layer else None
        if name == _BUFFER:
            continue
        if layer and expert:
            renamed[f"model.layers.{layer[1]}.block_sparse_moe.{expert[1]}"] = tensor
        elif layer and layer[2] in _LAYER_NAMES:
            count = heads.get(layer[2])
            its = tensor if count is None else _with_halves(tensor, count, f"{origin}: {name}")
            renamed[f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}"] = its
        elif name in _NAMES:
            renamed[_NAMES[name]] = tensor
        else:
            raise BadData(f"{origin}: {name} is no tensor of Llama or Mistral", "use the repository's files for transformers")
    embedding, output = renamed.get("model.embed_tokens.weight"), renamed.get("lm_head.weight")
    if embedding and output and (params.get("tied_embeddings") or embedding.chunks == output.chunks):
        del renamed["lm_head.weight"]
    return renamed


def _with_halves(tensor: Tensor, heads: int, origin: str) -> Tensor:
    """Reorder the rows within a head: from pairs of adjacent channels to the first channels of all pairs, then the second."""
    if len(tensor.shape) != 2 or tensor.shape[0] < 2 * heads or tensor.shape[0] % (2 * heads):
        raise BadData(f"{origin} is {list(tensor.shape)}: not the rows of {heads} heads")
    size = tensor.shape[0] // heads
    halves = [range(head * size + half, (head + 1) * size, 2) for head in range(heads) for half in (0, 1)]
    return concatenate(tensor.name, 0, [tensor.take(0, rows) for rows in halves])


def _config(params: Mapping[str, Any], tensors: Mapping[str, Tensor], path: str) -> dict[str, Any]:
    """The `config.json` of the model. Tensors give the sizes of the vocabulary and of the MLP."""
    vocabulary, ffn = _sizes(params, tensors, path)
    base = params.get("rope_theta") or (1e4 if not params.get("moe") else 1e6)
    positions = params.get("max_position_embeddings") or params.get("max_seq_len") or _POSITIONS.get(float(base), 32768)
    config: dict[str, Any] = {
        "hidden_size": params["dim"],
        "intermediate_size": ffn,
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params.get("n_kv_heads") or params["n_heads"],
        "head_dim": params.get("head_dim") or params["dim"] // params["n_heads"],
        "rms_norm_eps": params["norm_eps"],
        "vocab_size": vocabulary,
        "rope_theta": base,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "max_position_embeddings": positions,
    }
    if params.get("moe"):
        experts = {"num_local_experts": params["moe"]["num_experts"], "num_experts_per_tok": params["moe"]["num_experts_per_tok"]}
        return config | experts | {"model_type": "mixtral", "sliding_window": params.get("sliding_window")}
    if params.get("sliding_window"):
        return config | {"model_type": "mistral", "sliding_window": params["sliding_window"]}
    if params.get("use_scaled_rope"):
        config["max_position_embeddings"] = _SCALED_POSITIONS
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": _SMALL_FACTOR if params["dim"] in _SMALL_DIMS else _FACTOR,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    return config | {"model_type": "llama"}


def _sizes(params: Mapping[str, Any], tensors: Mapping[str, Tensor], path: str) -> tuple[int, int]:
    """The size of the vocabulary and of the MLP. Raises BadData if a tensor is missing, or the file says another size."""
    first = "model.layers.0.block_sparse_moe.experts.0.w1.weight" if params.get("moe") else "model.layers.0.mlp.gate_proj.weight"
    sizes = []
    for name, setting in (("model.embed_tokens.weight", "vocab_size"), (first, "hidden_dim")):
        if name not in tensors or not tensors[name].shape:
            raise BadData(f"{path.rpartition('/')[0]}: has no {name} (transformers' name)", INCOMPLETE)
        size, stated = tensors[name].shape[0], params.get(setting)
        # Llama 1 and 2 say -1.
        if stated not in (None, -1, size):
            raise BadData(f"{path}: {setting} is {stated!r:.40}, the files have {size}", INCOMPLETE)
        sizes.append(size)
    return sizes[0], sizes[1]


def _published(directory: str, files: Files) -> dict[str, Any]:
    """Fields that `params.json` lacks, from the config.json beside the files or, in `original`, from the one above them."""
    above, _, name = directory.rpartition("/")
    for place in (directory, *([above] if name == DIRECTORY else [])):
        try:
            if "config.json" not in listing(place):
                continue
            path = f"{place}/config.json"
            config = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path))))
        except NoInput:
            continue
        except (ValueError, TypeError, RecursionError) as error:
            raise BadData(f"{place}/config.json: not a model configuration: {error}") from None
        return {field: config[field] for field in _FROM_CONFIG if field in config}
    return {}
