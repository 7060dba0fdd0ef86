"""What `quantization_config` of a model says, of models as they are published."""

from typing import Any

import pytest

from lt_shared.console import BadConfig
from lt_shared.models import quantization
from lt_shared.models.quantization import MXFP4, Quantization

DEEPSEEK = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
GPT_OSS = {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"}
# As llm-compressor writes it.
PER_CHANNEL = {
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel", "type": "float"}}},
    "format": "float-quantized",
    "quant_method": "compressed-tensors",
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"quantization_config": None}, None),
        ({"quantization_config": DEEPSEEK}, Quantization("fp8", (128, 128))),
        ({"quantization_config": DEEPSEEK | {"scale_fmt": "ue8m0"}}, Quantization("fp8", (128, 128))),
        ({"quantization_config": DEEPSEEK | {"modules_to_not_convert": ["lm_head"]}}, Quantization("fp8", (128, 128))),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 32]}}, Quantization("fp8", (1, 32))),
        ({"quantization_config": GPT_OSS}, MXFP4),
    ],
)
def test_known_methods(config: dict[str, Any], expected: Quantization | None) -> None:
    assert quantization.of_config(config, "model") == expected


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        ({"quantization_config": PER_CHANNEL}, "quantized with compressed-tensors, which is not", "run_compressed=False"),
        ({"compression_config": {"format": "int-quantized"}}, "quantized with compressed-tensors", "run_compressed=False"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized with gptq", "rounding cannot be undone"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized with awq", "as it was before"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized with bitsandbytes", "dequantize"),
        ({"quantization_config": {"quant_algo": "FP8"}}, "something without a quant_method", "dequantize"),
        ({"quantization_config": {"quant_method": ["fp8"]}}, "something without a quant_method", "dequantize"),
        ({"quantization_config": {"quant_method": "fp8"}}, "a scale per tensor, which is not converted", "dequantize"),
        ({"quantization_config": DEEPSEEK | {"weight_block_size": None}}, "a scale per tensor", "dequantize"),
        ({"quantization_config": DEEPSEEK | {"weight_block_size": [128]}}, r"malformed: weight_block_size is \[128\]", ""),
        ({"quantization_config": DEEPSEEK | {"weight_block_size": [128, 0]}}, "malformed", ""),
        ({"quantization_config": DEEPSEEK | {"weight_block_size": [128, True]}}, "malformed", ""),
        ({"quantization_config": DEEPSEEK | {"weight_block_size": [128, 1.5]}}, "malformed", ""),
        ({"quantization_config": DEEPSEEK | {"fmt": "e5m2"}}, "fmt 'e5m2', only e4m3", "dequantize"),
        ({"quantization_config": DEEPSEEK | {"activation_scheme": "static"}}, "activation_scheme 'static'", "dequantize"),
        ({"quantization_config": DEEPSEEK | {"expert_dtype": "fp4"}}, "expert_dtype 'fp4'", "dequantize"),
        ({"quantization_config": ["fp8"]}, "malformed: it is no object", ""),
        ({"quantization_config": "fp8"}, "malformed: it is no object", ""),
    ],
)
def test_others_are_refused_by_name_with_what_to_do(config: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(BadConfig, match=message) as caught:
        quantization.of_config(config, "model")
    assert hint in (caught.value.hint or "")


def test_what_is_written_is_what_is_read() -> None:
    written = quantization.block_fp8_config((128, 128), ["lm_head"])
    assert quantization.of_config({"quantization_config": written}, "model") == Quantization("fp8", (128, 128))
