"""A layer with experts on several ranks, whose tokens are exchanged while it computes.

In place of megatron-core's order (shared experts, router, dispatcher, experts, dispatcher), where each waits for the one before:

    forward:  gather tokens | router; then experts; scatter sums | shared experts
    backward: gather the output's gradient | shared experts; gather tokens | experts; scatter | fc1's gradient, router

where what is behind a bar is computed meanwhile. Only the columns of a rank's own experts of the routing are sent to it, 4 bytes
a token and expert.

`lt_train.parallel.token_exchange` says what is sent, and why not with more ranks than a token has experts.
"""

from functools import partial
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from lt_train.ops.expert_mlp import Routing
from lt_train.ops.row_counts import RowCounts
from lt_train.parallel.token_exchange import ExchangedRows, TokenExchange, own_columns, receive, send

# In place of the probability of an expert that a token does not go to.
NOT_CHOSEN = -1.0


def exchange_whole_tokens(layer: MoELayer) -> None:
    recomputes = layer.config.recompute_granularity == "full" or layer.moe_layer_recompute
    layer.forward = partial(_forward, layer, RowCounts(recomputes))


def _forward(layer: MoELayer, counts: RowCounts, hidden_states: Tensor, *unused: Any, **options: Any) -> tuple[Tensor, None]:
    """As `MoELayer.forward`: hidden states [s, b, h] through router, experts and shared experts, and no bias."""
    compute = partial(_compute, layer, counts)
    if layer.moe_layer_recompute and layer.training:
        return tensor_parallel.checkpoint(compute, False, hidden_states), None
    return compute(hidden_states), None


def _compute(layer: MoELayer, counts: RowCounts, hidden_states: Tensor) -> Tensor:
    exchange = TokenExchange(layer.ep_group)
    tokens = send(hidden_states.reshape(-1, hidden_states.shape[-1]), exchange)
    probabilities, routing_map = layer.route(hidden_states)
    columns = own_columns(torch.where(routing_map, probabilities, NOT_CHOSEN), layer.ep_group)
    most = min(layer.config.moe_router_topk, columns.shape[1])
    coming = partial(counts.coming, training=layer.training)
    routing = Routing.of_part(columns != NOT_CHOSEN, most, layer.experts.operations.rows, coming)
    sums, _ = layer.experts(tokens, ExchangedRows(routing, exchange), columns)
    shared = layer.shared_experts_compute(hidden_states)
    output: Tensor = layer.experts.with_bias(receive(sums, exchange), probabilities).view(hidden_states.shape)
    return output if shared is None else output + shared
