"""Checkpoints of the published sizes without their values: files with true headers and holes, a few megabytes on disk.

Names, shapes and dtypes are written out here as they are in the models' repositories, and come from nothing in lt_convert.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from lt_convert.commands import conversion
from lt_convert.containers import dcp
from lt_convert.tensors.source_files import Files
from lt_shared.models import huggingface
from lt_shared.models.presets import preset

Described = Iterator[tuple[str, str, tuple[int, ...]]]

ITEM_BYTES = {"F8_E4M3": 1, "F32": 4, "BF16": 2, "U8": 1}
SHARD_BYTES = 4_300_000_000
BLOCK = 128


def _bf16(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Described:
    for name, shape in shapes.items():
        yield f"{prefix}{name}", "BF16", shape


def _fp8(prefix: str, shapes: Mapping[str, tuple[int, int]]) -> Described:
    for name, (rows, columns) in shapes.items():
        yield f"{prefix}{name}.weight", "F8_E4M3", (rows, columns)
        yield f"{prefix}{name}.weight_scale_inv", "F32", (-(-rows // BLOCK), -(-columns // BLOCK))


def _gated(width: int, hidden: int) -> dict[str, tuple[int, int]]:
    return {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}


def _deepseek_layer(layer: int) -> Described:
    prefix, hidden, heads = f"model.layers.{layer}.", 7168, 128
    projections = {
        "q_a_proj": (1536, hidden),
        "q_b_proj": (heads * 192, 1536),
        "kv_a_proj_with_mqa": (576, hidden),
        "kv_b_proj": (heads * 256, 512),
        "o_proj": (hidden, heads * 128),
    }
    yield from _fp8(f"{prefix}self_attn.", projections)
    yield from _bf16(f"{prefix}self_attn.", {"q_a_layernorm.weight": (1536,), "kv_a_layernorm.weight": (512,)})
    yield from _bf16(prefix, {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)})
    if layer < 3:
        yield from _fp8(f"{prefix}mlp.", _gated(18432, hidden))
        return
    yield from _bf16(f"{prefix}mlp.", {"gate.weight": (256, hidden)})
    yield f"{prefix}mlp.gate.e_score_correction_bias", "F32", (256,)
    for expert in ("shared_experts", *(f"experts.{number}" for number in range(256))):
        yield from _fp8(f"{prefix}mlp.{expert}.", _gated(2048, hidden))


def deepseek_v3(layers: int = 61) -> Described:
    hidden, vocabulary, prediction = 7168, 129280, f"model.layers.{layers}."
    yield from _bf16("model.", {"embed_tokens.weight": (vocabulary, hidden)})
    for layer in range(layers + 1):
        yield from _deepseek_layer(layer)
    norms = dict.fromkeys(("enorm.weight", "hnorm.weight", "shared_head.norm.weight"), (hidden,))
    yield from _bf16(prediction, {**norms, "eh_proj.weight": (hidden, 2 * hidden)})
    yield from _bf16(prediction, dict.fromkeys(("embed_tokens.weight", "shared_head.head.weight"), (vocabulary, hidden)))
    yield from _bf16("", {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)})


def gpt_oss_120b(layers: int = 36) -> Described:
    hidden, vocabulary, experts = 2880, 201088, 128
    attention = {"q_proj": (4096, hidden), "k_proj": (512, hidden), "v_proj": (512, hidden), "o_proj": (hidden, 4096)}
    yield from _bf16("model.", {"embed_tokens.weight": (vocabulary, hidden)})
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, shape in attention.items():
            yield from _bf16(f"{prefix}self_attn.{name}.", {"weight": shape, "bias": shape[:1]})
        yield from _bf16(
            prefix, {"self_attn.sinks": (64,), "mlp.router.weight": (experts, hidden), "mlp.router.bias": (experts,)}
        )
        yield from _bf16(prefix, {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)})
        for name, rows in {"gate_up_proj": 2 * hidden, "down_proj": hidden}.items():
            yield f"{prefix}mlp.experts.{name}_blocks", "U8", (experts, rows, hidden // 32, 16)
            yield f"{prefix}mlp.experts.{name}_scales", "U8", (experts, rows, hidden // 32)
            yield from _bf16(f"{prefix}mlp.experts.", {f"{name}_bias": (experts, rows)})
    yield from _bf16("", {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)})


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
# By preset: the tensors, and what config.json says beside the architecture.
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "deepseek-v3": (deepseek_v3, {"num_nextn_predict_layers": 1, "quantization_config": FP8}),
    "gpt-oss-120b": (gpt_oss_120b, {"quantization_config": {"quant_method": "mxfp4"}}),
}


def values(names: set[str]) -> set[str]:
    """The names of the tensors of a model as they are without quantization."""
    parts = {"_scale_inv": "", "_blocks": "", "_scales": ""}
    found = set()
    for name in names:
        for end, replacement in parts.items():
            name = name.removesuffix(end) + replacement if name.endswith(end) else name
        found.add(name)
    return found


def write(name: str, directory: Path, layers: int | None = None) -> set[str]:
    """The model of a preset in Hugging Face's format, of so many of its layers. Returns the names of its tensors."""
    directory.mkdir()
    described, more = MODELS[name]
    architecture = preset(name)
    architecture = dataclasses.replace(architecture, num_layers=layers or architecture.num_layers)
    weight_map: dict[str, str] = {}
    header: dict[str, Any] = {}
    end = shards = 0

    def close() -> None:
        nonlocal header, end, shards
        shards += 1
        encoded = json.dumps(header).encode()
        with open(directory / f"model-{shards:05d}.safetensors", "wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            file.truncate(8 + len(encoded) + end)
        header, end = {}, 0

    for tensor, dtype, shape in described(architecture.num_layers):
        size = ITEM_BYTES[dtype] * math.prod(shape)
        if header and end + size > SHARD_BYTES:
            close()
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        weight_map[tensor] = f"model-{shards + 1:05d}.safetensors"
        end += size
    close()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(huggingface.to_config(architecture, "bfloat16") | more))
    return set(weight_map)


def write_distributed(source: Path, directory: Path, chunk_bytes: int) -> None:
    """The same in torch_dist, in chunks as of ranks that hold an expert each: what lt-convert would write, without the values."""
    with mock.patch.object(dcp, "CHUNK_BYTES", chunk_bytes), Files() as files:
        plan = conversion.plan(conversion.Request(str(source), "megatron-dist", str(directory)), files, reads_values=False)
    for output in plan.files:
        path = directory / output.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "checksums.json":
            continue
        with open(path, "wb") as file:
            for offset, segment in output.segments_at():
                if isinstance(segment, bytes):
                    file.seek(offset)
                    file.write(segment)
            file.truncate(output.size_bytes)
