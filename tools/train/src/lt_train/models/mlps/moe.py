"""A layer with experts: a router, this rank's experts, and shared experts, which compute every token.

Three ways of the tokens to the experts:

- `LocalMoE`, where a rank has all experts: tokens stay in their order; their rows are gathered and summed as part of the experts'
  computation (`lt_train.ops.expert_mlp`), and no count of tokens is copied to the host.
- `ExchangingMoE`, where few ranks share the experts: whole tokens are exchanged while other parts compute,

      forward:  gather tokens | router; then experts; scatter sums | shared experts
      backward: gather the output's gradient | shared experts; gather tokens | experts; scatter | fc1's gradient, router

  where the part behind a bar is computed meanwhile. Only the columns of a rank's own experts of the routing are sent to it, 4
  bytes a token and expert. `lt_train.parallel.token_exchange` says what is sent, and why not with more ranks than a token has
  experts.
- `DispatchingMoE`, by megatron-core's dispatchers: a copy for each expert of a token, or all tokens, while nothing else runs.

Weights, as megatron-core names them: `router.weight` [experts, h], `experts`, and `shared_experts` of an MLP.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher, MoEAlltoAllTokenDispatcher
from torch import Tensor

from lt_train.models import recomputation
from lt_train.models.mlps.mlp import MLP
from lt_train.models.mlps.router import Router
from lt_train.ops.expert_mlp import Routing
from lt_train.ops.row_counts import RowCounts
from lt_train.parallel.token_exchange import ExchangedRows, TokenExchange, own_columns, receive, send

# In place of the probability of an expert that a token does not go to.
NOT_CHOSEN = -1.0


class MoE(MegatronModule):  # type: ignore[misc]
    """What the three ways have in common. `experts` compute rows or tokens, as their `forward` says."""

    def __init__(
        self,
        config: TransformerConfig,
        number: int,
        groups: ProcessGroupCollection,
        router: Router,
        experts: Any,
        shared_experts: MLP | None,
    ):
        super().__init__(config=config)
        self.groups = groups
        self.recomputes = recomputation.is_chosen(config, "moe")
        self.router = router
        router.set_layer_number(number)
        self.experts = experts
        # An optimizer of their own, as megatron-core gives it to them where other ranks have other experts: a checkpoint so has
        # the same parts with every expert parallel size.
        for parameter in experts.parameters():
            parameter.allreduce = False
        if shared_experts is not None:
            self.shared_experts = shared_experts

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        """Hidden states [s, b, h] through router, experts and shared experts, and no bias."""
        return recomputation.compute(self._output, self.recomputes and self.training, hidden_states), None

    def _output(self, hidden_states: Tensor) -> Tensor:
        shared = self._shared(hidden_states)
        output = self._routed(hidden_states, *self.router(hidden_states))
        return output if shared is None else output + shared

    def _routed(self, hidden_states: Tensor, probabilities: Tensor, routing_map: Tensor) -> Tensor:
        """The experts' output [s, b, h]; `probabilities` and `routing_map` are [s b, experts]."""
        raise NotImplementedError

    def _shared(self, hidden_states: Tensor) -> Tensor | None:
        return self.shared_experts(hidden_states)[0] if hasattr(self, "shared_experts") else None


class LocalMoE(MoE):
    def _routed(self, hidden_states: Tensor, probabilities: Tensor, routing_map: Tensor) -> Tensor:
        chosen = routing_map.view(-1, routing_map.shape[-1])
        routing = Routing.of_map(chosen, self.config.moe_router_topk, self.experts.operations.rows)
        output, _ = self.experts(hidden_states.reshape(-1, hidden_states.shape[-1]), routing, probabilities)
        return output.view(hidden_states.shape)  # type: ignore[no-any-return]


class ExchangingMoE(MoE):
    def __init__(self, config: TransformerConfig, *parts: Any):
        super().__init__(config, *parts)
        self.counts = RowCounts(config.recompute_granularity == "full" or self.recomputes)

    def _output(self, hidden_states: Tensor) -> Tensor:
        exchange = TokenExchange(self.groups.ep)
        tokens = send(hidden_states.reshape(-1, hidden_states.shape[-1]), exchange)
        probabilities, routing_map = self.router(hidden_states)
        columns = own_columns(torch.where(routing_map, probabilities, NOT_CHOSEN), self.groups.ep)
        most = min(self.config.moe_router_topk, columns.shape[1])
        coming = partial(self.counts.coming, training=self.training)
        routing = Routing.of_part(columns != NOT_CHOSEN, most, self.experts.operations.rows, coming)
        sums, _ = self.experts(tokens, ExchangedRows(routing, exchange), columns)
        shared = self._shared(hidden_states)
        output: Tensor = self.experts.with_bias(receive(sums, exchange), probabilities).view(hidden_states.shape)
        return output if shared is None else output + shared


class DispatchingMoE(MoE):
    def __init__(self, config: TransformerConfig, *parts: Any):
        super().__init__(config, *parts)
        ranks, rank = self.groups.ep.size(), self.groups.ep.rank()
        count = config.num_moe_experts // ranks
        kinds = {"alltoall": MoEAlltoAllTokenDispatcher, "allgather": MoEAllGatherTokenDispatcher}
        dispatcher = kinds[config.moe_token_dispatcher_type]
        numbers = list(range(rank * count, (rank + 1) * count))
        self.token_dispatcher = dispatcher(count, numbers, config=config, pg_collection=self.groups)

    def _routed(self, hidden_states: Tensor, probabilities: Tensor, routing_map: Tensor) -> Tensor:
        dispatcher = self.token_dispatcher
        tokens = dispatcher.dispatch_preprocess(hidden_states, routing_map, probabilities)
        rows, counts, probabilities = dispatcher.dispatch_postprocess(*dispatcher.token_dispatch(*tokens))
        outputs, _ = self.experts(rows, counts, probabilities)
        outputs = dispatcher.token_combine(dispatcher.combine_preprocess(outputs))
        return dispatcher.combine_postprocess(outputs)  # type: ignore[no-any-return]
