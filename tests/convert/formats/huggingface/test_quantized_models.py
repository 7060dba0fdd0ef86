"""Quantized models of the Hub, read and written: transformers and plain arithmetic say what the values are."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert.commands import checkpoint_comparison, conversion, inspection
from lt_convert.commands.conversion import Request
from lt_convert.formats import WRITTEN
from lt_convert.formats import huggingface as huggingface_format
from lt_convert.formats.huggingface import weight_quantization
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, UsageError
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture

BLOCK = 128
QWEN3 = Architecture("model", "llama", 2, 256, 384, 4, 2, 300, 64, kv_channels=64, qk_layernorm=True)
MIXTRAL = dataclasses.replace(QWEN3, qk_layernorm=False, num_experts=4, ffn_hidden_size=128)
# Neither rows nor columns of any weight are multiples of 128.
ODD = dataclasses.replace(QWEN3, hidden_size=200, ffn_hidden_size=328, kv_channels=50)
DEEPSEEK = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}


def make_model(directory: Path, architecture: Architecture) -> Path:
    """A model of transformers in bfloat16."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(**huggingface.to_config(architecture, "bfloat16"))
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(directory)
    return directory


def quantize(source: Path, directory: Path, scale_dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Store the linear modules' weights of a model in block fp8, as DeepSeek does, partial blocks included.

    Returns the values of all tensors by plain arithmetic, in bfloat16.
    """
    stored: dict[str, torch.Tensor] = {}
    values: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        stored[name] = values[name] = weight
        if weight.ndim != 2 or ".layers." not in name or ".gate." in name:
            continue
        rows, columns = (torch.arange(size) // BLOCK for size in weight.shape)
        scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                scales[row, column] = weight[rows == row][:, columns == column].abs().max().float() / 448
        scales = scales.to(scale_dtype)
        scale = scales.float()[rows][:, columns]
        fp8 = (weight.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored |= {name: fp8, f"{name}_scale_inv": scales}
        values[name] = (fp8.float() * scale).to(torch.bfloat16)
    directory.mkdir()
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"quantization_config": DEEPSEEK}
    (directory / "config.json").write_text(json.dumps(config))
    return values


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


def by_transformers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The values of a model that transformers loads and on a CPU dequantizes. It asks for accelerate, and uses none of it."""
    quantizer = pytest.importorskip("transformers.quantizers.quantizer_finegrained_fp8")
    monkeypatch.setattr(quantizer, "is_accelerate_available", lambda *arguments, **options: True)
    model, found = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(found.values()), found
    return dict(model.state_dict())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(bits(found[name]), bits(tensor)), name


@pytest.mark.parametrize("to", [name for name in WRITTEN if name != "hf"])
@pytest.mark.parametrize("architecture", [QWEN3, ODD], ids=["whole blocks", "partial blocks"])
def test_block_fp8_goes_to_every_format(architecture: Architecture, to: str, tmp_path: Path) -> None:
    expected = quantize(make_model(tmp_path / "model", architecture), tmp_path / "fp8")
    plain = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in expected.items()}
    assert not torch.equal(plain["model.layers.0.mlp.up_proj.weight"].bfloat16(), expected["model.layers.0.mlp.up_proj.weight"])
    made = convert(tmp_path / "fp8", to, tmp_path / to)
    convert(made, "hf", tmp_path / "back")
    assert_same(load_file(tmp_path / "back" / "model.safetensors"), expected)
    assert checkpoint_comparison.compare(str(tmp_path / "fp8"), str(made))["same"]
    assert not checkpoint_comparison.compare(str(tmp_path / "fp8"), str(tmp_path / "model"))["same"]


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_values_are_those_of_plain_arithmetic_and_of_transformers(
    scale_dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = quantize(make_model(tmp_path / "model", QWEN3), tmp_path / "fp8", scale_dtype)
    convert(tmp_path / "fp8", "hf", tmp_path / "bf16")
    found = load_file(tmp_path / "bf16" / "model.safetensors")
    assert_same(found, expected)
    assert "quantization_config" not in json.loads((tmp_path / "bf16" / "config.json").read_text())
    assert_same(found, by_transformers(tmp_path / "fp8", monkeypatch))


def test_products_are_rounded_once(tmp_path: Path) -> None:
    quantize(make_model(tmp_path / "model", ODD), tmp_path / "fp8")
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    convert(tmp_path / "fp8", "hf", tmp_path / "fp32", dtype="float32")
    found = load_file(tmp_path / "fp32" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    rows, columns = (torch.arange(size) // BLOCK for size in stored[name].shape)
    expected = stored[name].float() * stored[f"{name}_scale_inv"][rows][:, columns]
    assert torch.equal(found[name], expected)
    assert json.loads((tmp_path / "fp32" / "config.json").read_text())["dtype"] == "float32"


def test_layers_that_are_not_quantized_are_copied(tmp_path: Path) -> None:
    expected = quantize(make_model(tmp_path / "model", QWEN3), tmp_path / "fp8")
    original = load_file(tmp_path / "model" / "model.safetensors")
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    # One of three tensors that are one in Megatron.
    name = "model.layers.0.self_attn.k_proj.weight"
    stored.pop(f"{name}_scale_inv")
    stored[name] = expected[name] = original[name]
    save_file(stored, tmp_path / "fp8" / "model.safetensors", {"format": "pt"})
    convert(tmp_path / "fp8", "megatron-dist", tmp_path / "megatron")
    convert(tmp_path / "megatron", "hf", tmp_path / "back")
    assert_same(load_file(tmp_path / "back" / "model.safetensors"), expected)


def test_inspect_and_the_plan_say_that_it_is_quantized(tmp_path: Path) -> None:
    quantize(make_model(tmp_path / "model", QWEN3), tmp_path / "fp8")
    record = inspection.inspect(str(tmp_path / "fp8"))
    assert record["quantization"] == "fp8 in blocks of 128 x 128"
    assert inspection.inspect(str(tmp_path / "model"))["quantization"] is None
    with Files() as files:
        plan = conversion.plan(Request(str(tmp_path / "fp8"), "hf", str(tmp_path / "out")), files).to_record()
    operations = {tensor["name"]: tensor["operation"] for tensor in plan["tensors"]}
    assert operations["model.layers.0.self_attn.q_proj.weight"] == "copy, dequantize"
    assert operations["model.norm.weight"] == "copy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.pop("W_scale_inv"), "W is stored as float8_e4m3fn, and there is no W_scale_inv"),
        (lambda stored: stored.update({"W": stored["W"].bfloat16()}), "W_scale_inv is there, and no weight in fp8"),
        (lambda stored: stored.update(other_scale_inv=torch.ones(1, 1)), "other_scale_inv is there, and no weight"),
        (
            lambda stored: stored.update({"W_scale_inv": torch.ones(2, 2)}),
            r"W_scale_inv is \[2, 2\], W of \[384, 256\] needs \[3, 2\]",
        ),
        (lambda stored: stored.update({"W_scale_inv": torch.tensor(1.0)}), r"W_scale_inv is \[\], W of"),
        (
            lambda stored: stored.update({"W_scale_inv": torch.ones(3, 2).double()}),
            "stored as float64, which is no dtype of scales",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    quantize(make_model(tmp_path / "model", QWEN3), tmp_path / "fp8")
    weight = "model.layers.0.mlp.up_proj.weight"
    stored = {name.replace(weight, "W"): tensor for name, tensor in load_file(tmp_path / "fp8" / "model.safetensors").items()}
    change(stored)
    stored = {name.replace("W", weight): tensor for name, tensor in stored.items()}
    save_file(stored, tmp_path / "fp8" / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadData, match=message.replace("W", weight)):
        convert(tmp_path / "fp8", "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_configuration_of_other_weights_is_refused(tmp_path: Path) -> None:
    quantize(make_model(tmp_path / "model", QWEN3), tmp_path / "fp8")
    shutil.copy(tmp_path / "fp8" / "config.json", tmp_path / "model")
    with pytest.raises(BadData, match="no weight is stored as fp8 in blocks of 128 x 128"):
        convert(tmp_path / "model", "megatron-dist", tmp_path / "out")


def test_scales_without_a_configuration_are_refused(tmp_path: Path) -> None:
    """The weights alone would load, and compute noise."""
    make_model(tmp_path / "model", QWEN3)
    quantize(tmp_path / "model", tmp_path / "fp8")
    shutil.copy(tmp_path / "model" / "config.json", tmp_path / "fp8")
    with pytest.raises(BadData, match=r"weight_scale_inv"):
        convert(tmp_path / "fp8", "megatron-dist", tmp_path / "out")


@pytest.mark.parametrize("architecture", [QWEN3, MIXTRAL], ids=["dense", "experts"])
def test_what_is_written_in_fp8_is_loaded_by_transformers(
    architecture: Architecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "model", architecture)
    convert(tmp_path / "model", "megatron-dist", tmp_path / "megatron")
    convert(tmp_path / "megatron", "hf", tmp_path / "fp8", quantize=True)
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    kept = {name for name, tensor in stored.items() if tensor.dtype == torch.bfloat16}
    original = load_file(tmp_path / "model" / "model.safetensors")
    assert kept == {name for name in original if ".layers." not in name or original[name].ndim == 1 or ".gate." in name}
    assert all(torch.equal(stored[name], original[name]) for name in kept)
    convert(tmp_path / "fp8", "hf", tmp_path / "bf16")
    loaded, again = by_transformers(tmp_path / "fp8", monkeypatch), by_transformers(tmp_path / "bf16", monkeypatch)
    assert_same(loaded, again)
    assert any(not torch.equal(load_file(tmp_path / "bf16" / "model.safetensors")[name], original[name]) for name in original)
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())["quantization_config"]
    routers = [f"model.layers.{layer}.block_sparse_moe.gate" for layer in range(2)] if architecture.num_experts else []
    assert config == DEEPSEEK | {"modules_to_not_convert": ["lm_head", *routers]}


def test_weights_that_have_no_whole_blocks_are_kept_with_what_is_fused_with_them(tmp_path: Path) -> None:
    """Two heads of 32 for keys and values are 64 rows: query, key and value are one matrix in inference engines."""
    make_model(tmp_path / "model", dataclasses.replace(QWEN3, num_attention_heads=4, num_query_groups=2, kv_channels=32))
    convert(tmp_path / "model", "hf", tmp_path / "fp8", quantize=True)
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())["quantization_config"]
    attention = [f"model.layers.{layer}.self_attn.{letter}_proj" for layer in range(2) for letter in "qkv"]
    assert config["modules_to_not_convert"] == ["lm_head", *attention]
    fp8 = {name for name, tensor in stored.items() if tensor.dtype == torch.float8_e4m3fn}
    kinds = ("self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    assert fp8 == {f"model.layers.{layer}.{kind}_proj.weight" for layer in range(2) for kind in kinds}


def test_copies_of_the_ends_in_a_prediction_layer_stay_equal_to_them(tmp_path: Path) -> None:
    ends = ("embed_tokens", "shared_head.head")
    names = [f"model.layers.4.{name}.weight" for name in (*ends, "eh_proj", "self_attn.o_proj")]
    save_file({name: torch.ones(BLOCK, BLOCK, dtype=torch.bfloat16) for name in names}, tmp_path / "model.safetensors")
    with Files() as files:
        written, _ = weight_quantization.quantized(
            huggingface_format.read_file(str(tmp_path / "model.safetensors"), files), "model"
        )
    assert [name for name in names if f"{name}_scale_inv" in written] == ["model.layers.4.self_attn.o_proj.weight"]


def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path / "model", dataclasses.replace(QWEN3, hidden_size=192, ffn_hidden_size=192))
    quantize(make_model(tmp_path / "whole", QWEN3), tmp_path / "fp8")
    with pytest.raises(UsageError, match="no linear module whose rows and columns are multiples of 128"):
        convert(tmp_path / "model", "hf", tmp_path / "out", quantize=True)
    with pytest.raises(UsageError, match="only hf has quantized weights"):
        convert(tmp_path / "model", "megatron-dist", tmp_path / "out", quantize=True)
    with pytest.raises(UsageError, match="is quantized already: fp8 in blocks"):
        convert(tmp_path / "fp8", "hf", tmp_path / "out", quantize=True)
    make_model(tmp_path / "gpt2", Architecture("model", "gpt", 2, 256, 512, 4, 4, 300, 64, tie_embeddings=True))
    with pytest.raises(UsageError, match="no linear module"):
        convert(tmp_path / "gpt2", "hf", tmp_path / "out", quantize=True)
    assert not (tmp_path / "out").exists()


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """A weight of 90 million values, 360 MB in float32, is decoded and encoded in blocks."""
    shape, grid = (15000, 6000), (118, 47)
    code = """
import resource, sys
from lt_convert.formats import huggingface
from lt_convert.formats.huggingface.dequantization import dequantized
from lt_convert.tensors.output_files import Payload
from lt_convert.engine.pieces import contents
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.source_files import Files
from lt_shared.models.quantization import Quantization
with Files() as files:
    stored = huggingface.read_file(sys.argv[1], files)
    tensor = dequantized(stored, Quantization("fp8", (128, 128)), "model")["w"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = sum(len(block) for block in contents(Payload("w", eval(sys.argv[2], {"tensor": tensor})), TensorReader(files)))
print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    fp8 = torch.full(shape, 3.0).to(torch.float8_e4m3fn)
    save_file({"w": fp8, "w_scale_inv": torch.full(grid, 0.01)}, tmp_path / "model.safetensors")
    for expression, limit_mib in (("tensor", 32), ("tensor.transposed()", 192)):
        command = [sys.executable, "-c", code, str(tmp_path / "model.safetensors"), expression]
        total, mib = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
        assert total == 2 * shape[0] * shape[1]
        assert mib < limit_mib, expression
