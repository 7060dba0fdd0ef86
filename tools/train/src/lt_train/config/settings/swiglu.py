"""Whether SwiGLU can be computed inside the matrix products, by quack's kernels for Hopper GPUs, and recomputed alone."""

from lt_shared.architecture import Architecture
from lt_train.config.settings.layers import PRODUCTS, Layers
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import Precision
from lt_train.runtime import device

# In numbers of 16 bits, what the kernels copy at a time.
MULTIPLE = 8
# The major number of the compute capability of H100 and H200.
HOPPER = 9


def recompute_obstacle(
    layers: Layers, model: Architecture, precision: Precision, parallel: Parallelism, fully_sharded: bool
) -> str | None:
    """What stands in the way of making SwiGLU again in the backward pass: in its product, or in the pass that casts to fp8."""
    if precision.fp8_format is None:
        return obstacle(layers, model, precision, parallel, fully_sharded)
    reasons = {
        "--transformer-impl te": layers.transformer_engine,
        "--kernels torch": not layers.triton,
        f"--fp8-recipe {precision.fp8_recipe}": precision.fp8_recipe != "tensorwise",
        "a model without SwiGLU": model.family != "llama",
        "experts": model.num_experts is not None,
    }
    return next((reason for reason, stands in reasons.items() if stands), None)


def obstacle(layers: Layers, model: Architecture, precision: Precision, parallel: Parallelism, fully_sharded: bool) -> str | None:
    """What stands in the way; whether the GPU is a Hopper one is known only where it is."""
    reasons = {
        f"--device {parallel.device}": parallel.device != device.CUDA,
        "--transformer-impl te": layers.transformer_engine,
        "SwiGLU in a kernel of its own": layers.swiglu_in != PRODUCTS,
        "a model without SwiGLU": model.family != "llama",
        "experts": model.num_experts is not None,
        precision.dtype: not precision.bf16,
        "fp8": precision.fp8_format is not None,
        "--use-torch-fsdp2": fully_sharded,
        f"widths that are no multiples of {MULTIPLE}": model.hidden_size % MULTIPLE + model.ffn_hidden_size % MULTIPLE > 0,
        # Last: it alone depends on the layout that --parallel auto tries.
        f"tensor parallel size {parallel.tensor}": parallel.tensor > 1,
    }
    return next((reason for reason, stands in reasons.items() if stands), None)
