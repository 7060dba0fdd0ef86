"""The linear layers of blocks, on the tensor-parallel ranks: a column-parallel layer has rows of its weight, a row-parallel layer
has columns.

`Linears` builds megatron-core's layers, whose collectives wait for the GEMMs or, in the backward pass, run beside those of weight
gradients. `OverlappedLinears` builds layers with sequence parallelism whose collectives overlap with the GEMMs by copy engines
(`lt_train.ops.peer_exchange`). Layers in fp8 are in `lt_train.models.fp8_linear`. Weights, their names and their entries in
checkpoints are the same for all of them.
"""

import enum
from typing import Any

from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from lt_train.models.norms import norm
from lt_train.ops.parallel_linear import column_parallel, row_parallel
from lt_train.ops.row_exchange import Exchange

# A row-parallel layer's output [s, b, h], and the bias that whoever adds the output to the residual stream adds, too.
Outputs = tuple[Tensor, Tensor | None]


class Input(enum.Enum):
    """What a row-parallel layer gets, which decides what a layer in fp8 saves of it for the backward pass."""

    ACTIVATION = enum.auto()
    # The operation before the layer saves its output in any case.
    SAVED = enum.auto()
    # Gates and ups: the layer computes SwiGLU as part of its cast.
    GATE_UP = enum.auto()


class Linears:
    """Builds megatron-core's layers. Biases of row-parallel layers are returned, not added."""

    def __init__(self, config: TransformerConfig):
        self.config = config

    def column(self, inputs: int, outputs: int, *, bias: bool, skip_bias_add: bool = False, stride: int = 1) -> Any:
        """`stride` 2: the rows are gates and ups, of which each rank has a share."""
        return ColumnParallelLinear(inputs, outputs, **self._settings(bias, skip_bias_add), stride=stride)

    def row(self, inputs: int, outputs: int, *, bias: bool, source: Input = Input.ACTIVATION, norm_behind: bool = False) -> Any:
        """`norm_behind`: with a norm of the output, whose weight is the layer's `post_layernorm`."""
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
    """Gathers this rank's rows [s, b, k] from all ranks while it multiplies those that have arrived."""

    def __init__(self, inputs: int, outputs: int, *, exchange: Exchange, **settings: Any):
        super().__init__(inputs, outputs, **settings)
        self.exchange = exchange

    def forward(self, rows: Tensor) -> Outputs:
        return with_bias(self, column_parallel(rows, self.weight, self.exchange))


def with_bias(layer: Any, output: Tensor) -> Outputs:
    """What `layer`, column-parallel, returns: the output with the bias, or both for whoever adds them."""
    if layer.bias is None or layer.skip_bias_add:
        return output, layer.bias
    return output + layer.bias, None


class OverlappedRowLinear(RowParallelLinear):  # type: ignore[misc]
    """Sums each rank's share of the rows over the ranks while it multiplies the next one's."""

    def __init__(self, inputs: int, outputs: int, *, exchange: Exchange, **settings: Any):
        super().__init__(inputs, outputs, **settings)
        self.exchange = exchange

    def forward(self, rows: Tensor) -> Outputs:
        return row_parallel(rows, self.weight, self.exchange), self.bias


class NormBehind:
    """Of a row-parallel layer: a norm of its output summed over the tensor-parallel ranks (OLMo 2, Gemma 2).

    The norm's weight has the name that Megatron-Bridge gives it: `linear_proj.post_layernorm`, `linear_fc2.post_layernorm`.
    """

    def __init__(self, inputs: int, outputs: int, *, config: TransformerConfig, **settings: Any):
        super().__init__(inputs, outputs, config=config, **settings)  # type: ignore[call-arg]
        self.post_layernorm = norm(config, outputs, config.layernorm_epsilon)

    def forward(self, rows: Tensor) -> Outputs:
        output, bias = super().forward(rows)  # type: ignore[misc]
        return self.post_layernorm(output), bias


class NormedRowParallelLinear(NormBehind, RowParallelLinear):  # type: ignore[misc]
    pass
