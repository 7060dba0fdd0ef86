"""Read `quantization_config` of a Hugging Face `config.json`: the format in which the weights are stored.

transformers has twenty methods. Two are read, because some large models are published in these formats only: fp8 with a scale per
block (DeepSeek-V3 and R1, Kimi K2, Qwen3-FP8) and MXFP4 (gpt-oss). The other methods are refused by name, with the remedy: their
fp8 or int4 bits would load as numbers, and the model would compute noise.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from lt_shared.console import BadConfig

Method = Literal["fp8", "mxfp4"]

FIELD = "quantization_config"
# compressed-tensors wrote this one before.
FORMER_FIELD = "compression_config"
# Values that share a scale in MXFP4.
MXFP4_BLOCK = 32
_REMEDY = "use the model as it was before, or store what transformers' model.dequantize() makes of it"
_REMEDIES = {
    "compressed-tensors": "its own library undoes it: AutoModelForCausalLM.from_pretrained(DIR, quantization_config="
    "CompressedTensorsConfig(run_compressed=False)), then save_pretrained; or use the model as it was before",
    "modelopt": "use the model as it was before",
    "gptq": "use the model as it was before: its rounding cannot be undone",
    "awq": "use the model as it was before: its rounding cannot be undone",
}


@dataclasses.dataclass(frozen=True)
class Quantization:
    """How weights are stored. `block` is the rows and columns of a weight that share a scale."""

    method: Method
    block: tuple[int, int]

    def __str__(self) -> str:
        rows, columns = self.block
        return f"fp8 in blocks of {rows} x {columns}" if self.method == "fp8" else "MXFP4"


MXFP4 = Quantization("mxfp4", (1, MXFP4_BLOCK))


def of_config(config: Mapping[str, Any], name: str) -> Quantization | None:
    """Read the quantization of the model `name`. None for unquantized weights; raises BadConfig for other methods."""
    quantization = config.get(FIELD) or config.get(FORMER_FIELD)
    if not quantization:
        return None
    if not isinstance(quantization, Mapping):
        raise BadConfig(f"{name}: {FIELD} is malformed: it is no object")
    method = quantization.get("quant_method") or ("compressed-tensors" if FORMER_FIELD in config else None)
    if method == "mxfp4":
        return MXFP4
    if method != "fp8":
        what = method if isinstance(method, str) else "something without a quant_method"
        raise BadConfig(f"{name}: is quantized with {what}, which is not converted", _REMEDIES.get(what, _REMEDY))
    return _block_fp8(quantization, name)


def _block_fp8(quantization: Mapping[str, Any], name: str) -> Quantization:
    block = quantization.get("weight_block_size")
    if block is None:
        raise BadConfig(
            f"{name}: is quantized with fp8 without weight_block_size, a scale per tensor, which is not converted", _REMEDY
        )
    if type(block) is not list or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise BadConfig(f"{name}: {FIELD} is malformed: weight_block_size is {block!r}")
    expected = {"fmt": "e4m3", "activation_scheme": "dynamic", "expert_dtype": "fp8"}
    for field, value in expected.items():
        if quantization.get(field, value) != value:
            raise BadConfig(
                f"{name}: is quantized with fp8 with {field} {quantization[field]!r}, only {value} is converted", _REMEDY
            )
    return Quantization("fp8", (block[0], block[1]))


def block_fp8_config(block: tuple[int, int], not_converted: list[str]) -> dict[str, Any]:
    """The `quantization_config` of weights in fp8 with float32 scales. `not_converted` names the linear modules without."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": list(block),
        "modules_to_not_convert": not_converted,
    }
