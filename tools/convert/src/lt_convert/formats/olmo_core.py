"""OLMo-core: a directory `stepN` with the DCP checkpoint `model_and_optim`, and the run's settings in `config.json`.

Only dense models are read whose layers transformers has, too: OLMo 2 and 3 (norms behind attention and MLP), Llama, and Qwen3
(norms of query and key heads). Fields of `config.json` that change a model in another way are refused by name. Tensors get
transformers' names; both programs pair a head's channels alike.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.containers import dcp
from lt_convert.containers.dcp import METADATA
from lt_convert.formats import OLMO_CORE, beside_model
from lt_convert.formats.checkpoint import Source
from lt_convert.formats.directories import OLMO_STEP, listing
from lt_convert.tensors.source_files import INCOMPLETE, UNFINISHED, Files
from lt_convert.tensors.tensor import Tensor
from lt_convert.tokenizers import discovery
from lt_convert.tokenizers.huggingface_tokenizer import SPECIAL_IDS
from lt_convert.weights import families
from lt_convert.weights.mapping import HF, Model
from lt_shared.console import BadConfig, BadData
from lt_shared.files import strict_json
from lt_shared.models import huggingface

TABLE = HF
# OLMo-core writes `.metadata.json` behind the tensors, and `config.json` behind that.
WEIGHTS, FINISHED, CONFIG = "model_and_optim", ".metadata.json", "config.json"
_MODEL = "model."
_HIDDEN_FIELDS = ("init_method", "init_seed", "init_std", "embedding_init_std", "freeze_params", "dtype", "_CLASS_")
# Fields that do not change a model if they have one of these values, or any value (None).
_LAYER_NORM = {"name": ("rms", "fused_rms"), "bias": (False,), "elementwise_affine": (None, True), "full_precision": None}
_ROPE = {"name": ("default", "fused"), "full_precision": None, "no_global_rope": (False,), "partial_rotary_factor": (1.0,)}
_FEED_FORWARD = {"name": ("default",), "bias": (False,), "activation": ("silu",)}
_ATTENTION: dict[str, tuple[Any, ...] | None] = {
    "name": ("default", "fused_v2"),
    "type": ("attention",),
    "bias": (False,),
    "qk_norm_per_head_gains": (None, False),
    **dict.fromkeys(("dropout", "use_flash", "backend", "use_recompute_qkv_prep", "mxfp8_save_qkv_for_backward")),
}
_READ = {
    "model": ("d_model", "vocab_size", "n_layers", "block", "block_overrides", "lm_head", "tie_word_embeddings"),
    "block": ("sequence_mixer", "attention", "layer_norm", "feed_forward", "name"),
    "attention": ("n_heads", "n_kv_heads", "head_dim", "rope", "qk_norm", "use_head_qk_norm", "sliding_window"),
    "rope": ("theta", "scaling"),
    "feed_forward": ("hidden_size",),
    "layer_norm": ("eps",),
    "lm_head": ("layer_norm", "loss_implementation"),
}
_SCALING = re.compile(r".*\.(PI|Stepwise|YaRN)RoPEScalingConfig")
_NAMES = {
    "embeddings.weight": "model.embed_tokens.weight",
    "lm_head.norm.weight": "model.norm.weight",
    "lm_head.w_out.weight": "lm_head.weight",
}
# Queries, keys and values in one matrix, which the attention `fused_v2` has.
_PACKED = "attention.w_qkv"
_LAYER_NAMES = {
    **{f"attention.w_{letter}": f"self_attn.{letter}_proj" for letter in "qkv"},
    **{f"attention.{letter}_norm": f"self_attn.{letter}_norm" for letter in "qk"},
    "attention.w_out": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_NORMS_BEFORE = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
_NORMS_BEHIND = {"attention_norm": "post_attention_layernorm", "feed_forward_norm": "post_feedforward_layernorm"}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.weight")


def recognise(names: Sequence[str]) -> bool:
    return WEIGHTS in names


def is_finished(names: Sequence[str]) -> bool:
    """Return whether a directory `stepN` with these names has the files that OLMo-core writes last."""
    return {WEIGHTS, FINISHED, CONFIG} <= set(names)


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData for anything malformed, and for a model that no other format has."""
    names = listing(directory)
    for name in (FINISHED, CONFIG):
        if name not in names:
            raise BadData(f"{directory}/{name}: missing", UNFINISHED)
    if METADATA not in listing(f"{directory}/{WEIGHTS}"):
        raise BadData(f"{directory}/{WEIGHTS}/{METADATA}: missing", INCOMPLETE)
    path = f"{directory}/{CONFIG}"
    try:
        settings = dict(strict_json.loads(files.read(path, 0, files.size_bytes(path))))
        config = _config(settings, path)
        architecture = huggingface.from_config(config, directory.rsplit("/", 2)[-2])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadData(f"{path}: not the settings of an OLMo-core run: {error!r:.200}") from None
    except BadConfig as error:
        raise BadData(f"{path}: {error}", error.hint) from None
    contents = dcp.read(f"{directory}/{WEIGHTS}", files)
    tensors = _renamed(contents, config)
    model = Model(architecture, architecture.vocab_size)
    family = families.family_of(architecture)
    run = directory.rpartition("/")[0] or "."
    tokenizer = discovery.of_run(run, None, files)
    step = OLMO_STEP.fullmatch(directory.rsplit("/", 1)[-1])
    fields = beside_model.stored_fields(OLMO_CORE.name, run, names, tokenizer, files)
    return Source(
        directory=directory,
        format=OLMO_CORE.name,
        table=HF,
        model=model,
        tensors=family.to_canonical(HF, model, tensors, directory),
        aliases=tuple(family.aliases(HF, model, tensors)),
        tokenizer=tokenizer,
        **fields | {"special_ids": fields["special_ids"] or _special_ids(settings)},
        iteration=int(step[1]) if step else None,
        left_out=tuple(key for key in (*contents.entries, *contents.objects) if not key.startswith(_MODEL)),
        details={"files": len({location.file for location in contents.locations.values()})},
    )


def _special_ids(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    dataset = settings.get("dataset")
    tokenizer = dataset.get("tokenizer") if isinstance(dataset, dict) else None
    return {name: tokenizer[name] for name in SPECIAL_IDS if name in tokenizer} if isinstance(tokenizer, dict) else None


def _renamed(contents: dcp.Contents, config: Mapping[str, Any]) -> dict[str, Tensor]:
    names = _LAYER_NAMES | (_NORMS_BEHIND if config["model_type"].startswith("olmo") else _NORMS_BEFORE)
    queries, keys = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    rows = {"q": range(queries), "k": range(queries, queries + keys), "v": range(queries + keys, queries + 2 * keys)}
    tensors: dict[str, Tensor] = {}
    for key in contents.entries:
        if not key.startswith(_MODEL):
            continue
        name = key.removeprefix(_MODEL)
        block = _BLOCK.fullmatch(name)
        if name in _NAMES:
            tensors[_NAMES[name]] = contents.tensor(key)
        elif block and block[2] in names:
            tensors[f"model.layers.{block[1]}.{names[block[2]]}.weight"] = contents.tensor(key)
        elif block and block[2] == _PACKED:
            packed = contents.tensor(key)
            if packed.shape[:1] != (queries + 2 * keys,):
                raise BadData(f"{contents.directory}: {key} is {list(packed.shape)}, expected {queries + 2 * keys} rows")
            for letter, its in rows.items():
                tensors[f"model.layers.{block[1]}.self_attn.{letter}_proj.weight"] = packed.take(0, its)
        else:
            raise BadData(f"{contents.directory}: {key} is no tensor of a dense model", _EXPORT)
    return tensors


# Where the longest sequence of the training may stand.
_LENGTHS = (("train_module", "max_sequence_length"), ("dataset", "sequence_length"), ("dataset", "max_sequence_length"))
_EXPORT = "export it to Hugging Face with OLMo-core: src/examples/huggingface/convert_checkpoint_to_hf.py"


def _part(fields: Any, kind: str, neutral: Mapping[str, tuple[Any, ...] | None], place: str) -> dict[str, Any]:
    """Return a part of the model's settings. Raises BadConfig for a field that changes the model in an unknown way."""
    if not isinstance(fields, dict):
        raise TypeError(f"{place} is no object")
    for name, value in fields.items():
        values = neutral.get(name, (None, False))
        if name not in (*_READ[kind], *_HIDDEN_FIELDS) and values is not None and value not in values:
            raise BadConfig(f"{place}.{name} is {value!r:.80}, which no other format has", _EXPORT)
    for name, required in neutral.items():
        # The class may have another default than the values here.
        if required is not None and None not in required and name == "bias" and name not in fields:
            raise BadConfig(f"{place}.{name} is not set: OLMo-core's default is true, which no other format has", _EXPORT)
    return fields


def _config(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The model's `config.json` for transformers, from OLMo-core's settings."""
    fields = _part(settings["model"], "model", {"name": ("default",), "embed_scale": (None, 1, 1.0)}, "model")
    overrides = {int(layer): block for layer, block in (fields.get("block_overrides") or {}).items()}
    count = fields["n_layers"]
    if type(count) is not int or not 0 < count <= 10_000:
        raise ValueError(f"n_layers is {count!r:.40}")
    own = [(layer, *_layer(overrides[layer], layer, count)) for layer in sorted(overrides)]
    usual = [(layer, *_layer(fields["block"], layer, count)) for layer in range(count) if layer not in overrides]
    layers = sorted(own + usual, key=lambda layer: layer[0])
    shared = layers[0][1]
    if any(layer[1] != shared for layer in layers):
        raise BadConfig(
            "model.block_overrides: layers differ in more than windows and scaling, which no other format has", _EXPORT
        )
    windows = {window for _, _, window, _ in layers if window is not None}
    scalings = [scaling for _, _, window, scaling in layers if window is None or not windows]
    if len(windows) > 1 or any(scaling != scalings[0] for scaling in scalings):
        raise BadConfig("model.block: layers have several windows or scalings, which no other format has", _EXPORT)
    if any(scaling for _, _, window, scaling in layers if window is not None):
        raise BadConfig("model.block: layers with a window have a scaling of positions, which no other format has", _EXPORT)
    head = _part(fields["lm_head"], "lm_head", {"name": ("default",), "bias": (False,)}, "model.lm_head")
    norm = _part(head["layer_norm"], "layer_norm", _LAYER_NORM, "model.lm_head.layer_norm")
    if (norm.get("eps") or 1e-5) != shared["rms_norm_eps"]:
        raise BadConfig("model.lm_head.layer_norm.eps differs from the layers', which no other format has", _EXPORT)
    config = shared | {
        "hidden_size": fields["d_model"],
        "vocab_size": fields["vocab_size"],
        "num_hidden_layers": count,
        "tie_word_embeddings": bool(fields.get("tie_word_embeddings")),
        "max_position_embeddings": _positions(settings, scalings[0] if scalings else None, path),
        "head_dim": shared["head_dim"] or fields["d_model"] // shared["num_attention_heads"],
    }
    if scalings and scalings[0]:
        config["rope_scaling"] = scalings[0]
    if windows:
        if config["model_type"] != "olmo2":
            raise BadConfig("model.block: has windows, and norms in another place than OLMo 3's", _EXPORT)
        kinds = ["full_attention" if window is None else "sliding_attention" for _, _, window, _ in layers]
        config |= {"model_type": "olmo3", "sliding_window": windows.pop(), "layer_types": kinds}
    return config


def _layer(block: Any, layer: int, count: int) -> tuple[dict[str, Any], int | None, dict[str, Any] | None]:
    """Return the settings that all layers must share, the window of this one, and the scaling of its positions."""
    fields = _part(
        block,
        "block",
        {"dropout": None, "attention_residual_alpha": (None, 1, 1.0), "feed_forward_residual_alpha": (None, 1, 1.0)},
        "model.block",
    )
    mixer = fields.get("sequence_mixer") or fields["attention"]
    attention = _part(mixer, "attention", _ATTENTION, "model.block.attention")
    rope = _part(attention["rope"], "rope", _ROPE, "model.block.attention.rope")
    mlp = _part(fields["feed_forward"], "feed_forward", _FEED_FORWARD, "model.block.feed_forward")
    norm = _part(fields["layer_norm"], "layer_norm", _LAYER_NORM, "model.block.layer_norm")
    epsilon = norm.get("eps") or 1e-5
    has_norms = attention.get("qk_norm") is not None
    if has_norms:
        norms = _part(attention["qk_norm"], "layer_norm", _LAYER_NORM, "model.block.attention.qk_norm")
        if (norms.get("eps") or 1e-5) != epsilon:
            raise BadConfig("model.block.attention.qk_norm.eps differs from the layer's, which no other format has", _EXPORT)
    kinds = {
        ("reordered_norm", True, False): "olmo2",
        ("default", False, False): "llama",
        ("default", True, True): "qwen3",
    }
    name, is_by_head = fields.get("name", "default"), bool(attention.get("use_head_qk_norm"))
    model_type = kinds.get((name, has_norms, has_norms and is_by_head))
    if model_type is None:
        described = f"block {name!r} with{'' if has_norms else 'out'} norms of {'heads' if is_by_head else 'queries and keys'}"
        raise BadConfig(f"model.block: {described} is in no other format", _EXPORT)
    shared = {
        "model_type": model_type,
        "intermediate_size": mlp["hidden_size"],
        "num_attention_heads": attention["n_heads"],
        "num_key_value_heads": attention.get("n_kv_heads") or attention["n_heads"],
        "head_dim": attention.get("head_dim"),
        "rms_norm_eps": epsilon,
        "rope_theta": rope["theta"],
    }
    return shared, _window(attention.get("sliding_window"), layer, count), _scaling(rope.get("scaling"))


def _window(fields: Any, layer: int, count: int) -> int | None:
    """The window of a layer: the pattern begins behind the first layer if that has none."""
    if not fields:
        return None
    pattern = list(fields["pattern"])
    is_first_full = fields.get("force_full_attention_on_first_layer", True)
    is_last_full = fields.get("force_full_attention_on_last_layer", True)
    if not pattern or (is_first_full and layer == 0) or (is_last_full and layer == count - 1):
        return None
    window = pattern[(layer - bool(is_first_full)) % len(pattern)]
    return None if window == -1 else int(window)


def _scaling(fields: Any) -> dict[str, Any] | None:
    """The scaling of positions as transformers has it. Raises BadConfig for a kind that transformers lacks."""
    if not fields:
        return None
    match = _SCALING.fullmatch(str(fields.get("_CLASS_")))
    if match is None or fields.get("attention_rescale_factor", 1.0) != 1.0:
        raise BadConfig(f"model.block.attention.rope.scaling is {str(fields)!r:.80}, which no other format has", _EXPORT)
    if match[1] == "PI":
        return {"rope_type": "linear", "factor": fields.get("factor", 2.0)}
    context = fields.get("old_context_len", 8192)
    if match[1] == "YaRN":
        factor = fields.get("factor", 8.0)
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": context,
            "beta_fast": fields.get("beta_fast", 32),
            "beta_slow": fields.get("beta_slow", 1),
            "attention_factor": 0.1 * math.log(factor) + 1.0,
        }
    return {
        "rope_type": "llama3",
        "factor": fields.get("factor", 32.0),
        "original_max_position_embeddings": context,
        "low_freq_factor": 1.0 / (1 - fields.get("low_freq_proportion", 0.0)),
        "high_freq_factor": 1.0 / fields.get("high_freq_proportion", 0.25),
    }


def _positions(settings: Mapping[str, Any], scaling: Mapping[str, Any] | None, path: str) -> int:
    """The longest sequence of the training, which OLMo-core's own export asks its user for."""
    for section, name in _LENGTHS:
        fields = settings.get(section)
        if isinstance(fields, dict) and type(fields.get(name)) is int:
            return int(fields[name])
    raise BadConfig(f"{path}: has no train_module.max_sequence_length", "add it: the longest sequence of the training")
