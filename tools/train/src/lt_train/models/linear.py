"""The tensor-parallel linear layers of blocks. A column-parallel layer shards the rows of its weight, a row-parallel one the
columns.

`Linears` builds megatron-core's layers, which overlap no collectives with GEMMs except the weight gradient GEMMs.
`OverlappedLinears` builds sequence-parallel layers that overlap their collectives with the GEMMs by copy engines
(`lt_train.ops.peer_exchange`). The fp8 layers are in `lt_train.models.fp8_linear`. All have the same weights, with the same names
and shards in checkpoints.
"""

import enum
from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from lt_train.models.norms import norm
from lt_train.ops.parallel_linear import column_parallel, row_parallel
from lt_train.ops.row_exchange import Exchange

# The output [s, b, h] of a row-parallel layer, and its bias, which is added together with the output to the residual stream.
Outputs = tuple[Tensor, Tensor | None]


class Input(enum.Enum):
    """The kind of input of a row-parallel layer. It decides which tensors an fp8 layer saves for the backward pass."""

    ACTIVATION = enum.auto()
    # The operation before the layer saves its output in any case.
    SAVED = enum.auto()
    # Gates and ups: the layer computes SwiGLU as part of its cast.
    GATE_UP = enum.auto()


class Linears:
    """Build megatron-core's layers. Row-parallel layers return their bias instead of adding it."""

    def __init__(self, config: TransformerConfig):
        self.config = config

    def column(self, inputs: int, outputs: int, *, bias: bool, skip_bias_add: bool = False, stride: int = 1) -> Any:
        """Build a column-parallel layer. With `stride` 2, its rows are gates and ups, which are sharded separately."""
        return ColumnParallelLinear(inputs, outputs, **self._settings(bias, skip_bias_add), stride=stride)

    def row(self, inputs: int, outputs: int, *, bias: bool, source: Input = Input.ACTIVATION, norm_behind: bool = False) -> Any:
        """Build a row-parallel layer. With `norm_behind`, the norm `post_layernorm` normalizes its output."""
        layer = NormedRowParallelLinear if norm_behind else RowParallelLinear
        return layer(inputs, outputs, **self._row_settings(bias))

    def _settings(self, bias: bool, skip_bias_add: bool) -> dict[str, Any]:
        return {"config": self.config, "init_method": self.config.init_method, "bias": bias, "skip_bias_add": skip_bias_add}

    def _row_settings(self, bias: bool) -> dict[str, Any]:
        settings = self._settings(bias, skip_bias_add=True)
        return settings | {"init_method": self.config.output_layer_init_method, "input_is_parallel": True}


class OverlappedLinears(Linears):
    def __init__(self, config: TransformerConfig, exchange: Exchange):
        super().__init__(config)
        self.exchange = exchange

    def column(self, inputs: int, outputs: int, *, bias: bool, skip_bias_add: bool = False, stride: int = 1) -> Any:
        settings = self._settings(bias, skip_bias_add)
        return OverlappedColumnLinear(inputs, outputs, **settings, stride=stride, exchange=self.exchange)

    def row(self, inputs: int, outputs: int, *, bias: bool, source: Input = Input.ACTIVATION, norm_behind: bool = False) -> Any:
        if norm_behind:
            return super().row(inputs, outputs, bias=bias, norm_behind=True)
        return OverlappedRowLinear(inputs, outputs, **self._row_settings(bias), exchange=self.exchange)


class OverlappedColumnLinear(ColumnParallelLinear):  # type: ignore[misc]
    """All-gather the rows [s, b, k] while the GEMM multiplies the rows that have arrived."""

    def __init__(self, inputs: int, outputs: int, *, exchange: Exchange, **settings: Any):
        super().__init__(inputs, outputs, **settings)
        self.exchange = exchange

    def forward(self, rows: Tensor) -> Outputs:
        return with_bias(self, column_parallel(rows, self.weight, self.exchange))


def with_bias(layer: Any, output: Tensor) -> Outputs:
    """Return the `output` of a column-parallel `layer` with its bias added, or both separately with `skip_bias_add`."""
    if layer.bias is None or layer.skip_bias_add:
        return output, layer.bias
    return output + layer.bias, None


class OverlappedRowLinear(RowParallelLinear):  # type: ignore[misc]
    """Reduce a rank's rows over all ranks while the GEMM multiplies the next rank's rows."""

    def __init__(self, inputs: int, outputs: int, *, exchange: Exchange, **settings: Any):
        super().__init__(inputs, outputs, **settings)
        self.exchange = exchange

    def forward(self, rows: Tensor) -> Outputs:
        return row_parallel(rows, self.weight, self.exchange), self.bias


class NormBehind:
    """Mixin for a row-parallel layer: normalize its output, summed over the tensor-parallel ranks (OLMo 2, Gemma 2).

    The norm has the name that Megatron-Bridge uses: `linear_proj.post_layernorm`, `linear_fc2.post_layernorm`.
    """

    def __init__(self, inputs: int, outputs: int, *, config: TransformerConfig, **settings: Any):
        super().__init__(inputs, outputs, config=config, **settings)  # type: ignore[call-arg]
        self.post_layernorm = norm(config, outputs, config.layernorm_epsilon)

    def forward(self, rows: Tensor) -> Outputs:
        output, bias = super().forward(rows)  # type: ignore[misc]
        return self.post_layernorm(output), bias


class NormedRowParallelLinear(NormBehind, RowParallelLinear):  # type: ignore[misc]
    pass


def replicated_linear(config: TransformerConfig, inputs: int, outputs: int) -> torch.nn.Linear:
    """Build a linear layer that is replicated on the tensor-parallel ranks. With sequence parallelism they sum its gradient.

    As in TransformerEngine, the projections down to a latent are replicated: they are 2% of the attention weights of DeepSeek-V3,
    and the latents need not be gathered.
    """
    layer = torch.nn.Linear(inputs, outputs, bias=False, dtype=config.params_dtype, device=torch.cuda.current_device())
    layer.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return layer
