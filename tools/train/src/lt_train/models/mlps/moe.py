"""A layer with experts: a router, the local experts, and optional shared experts, which compute every token.

`LocalMoE`, `ExchangingMoE` and `DispatchingMoE` differ in how tokens get to the experts. The weights have megatron-core's names:
`router.weight` [experts, h], `experts`, and the MLP `shared_experts`.
"""

import copy
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
from lt_train.parallel.token_exchange import ExchangedRows, TokenExchange, local_expert_columns, receive, send

# Replaces the probability of an expert that a token is not routed to.
NOT_CHOSEN = -1.0


class MoE(MegatronModule):  # type: ignore[misc]
    """The base class. `experts` compute rows or tokens, depending on their `forward`."""

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
        self.counts = RowCounts(config.recompute_granularity == "full" or self.recomputes)
        self.router = router
        # megatron-core logs the auxiliary losses by layer number.
        router.set_layer_number(number)
        self.experts = experts
        # `allreduce = False` gives the experts a separate optimizer. megatron-core does that with expert parallelism only. Here a
        # checkpoint has the same parts with every expert parallel size.
        for parameter in experts.parameters():
            parameter.allreduce = False
        if shared_experts is not None:
            self.shared_experts = shared_experts

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        """Return the output [s, b, h] of experts and shared experts, and no bias."""
        return recomputation.compute(self._output, self.recomputes and self.training, hidden_states), None

    def _output(self, hidden_states: Tensor) -> Tensor:
        shared = self._shared(hidden_states)
        output = self._routed(hidden_states, *self.router(hidden_states))
        return output if shared is None else output + shared

    def _routed(self, hidden_states: Tensor, probabilities: Tensor, routing_map: Tensor) -> Tensor:
        """Return the output [s, b, h] of the routed experts. `probabilities` and `routing_map` are [s b, experts]."""
        raise NotImplementedError

    def _partial_routing(self, routing_map: Tensor, most: int) -> Routing:
        """Sort the rows of a map [tokens, experts] with up to `most` experts per token."""
        # The host needs the number of rows to allocate them; it waits only after the kernels that need just a bound are launched.
        start_copy = partial(self.counts.start_copy, training=self.training)
        return Routing.from_partial_map(routing_map, most, self.experts.operations.rows, start_copy)

    def _shared(self, hidden_states: Tensor) -> Tensor | None:
        return self.shared_experts(hidden_states)[0] if hasattr(self, "shared_experts") else None


class LocalMoE(MoE):
    """For a rank with all experts.

    Tokens stay in their order. The experts' kernels gather and sum their rows (`lt_train.ops.expert_mlp`), and no token count is
    copied to the host.
    """

    def _routed(self, hidden_states: Tensor, probabilities: Tensor, routing_map: Tensor) -> Tensor:
        chosen, most = routing_map.view(-1, routing_map.shape[-1]), self.config.moe_router_topk
        if self.router.capacity_factor is None:
            routing = Routing.from_map(chosen, most, self.experts.operations.rows)
        else:
            # With a capacity, tokens have fewer rows than experts.
            routing = self._partial_routing(chosen, most)
        output, _ = self.experts(hidden_states.reshape(-1, hidden_states.shape[-1]), routing, probabilities)
        return output.view(hidden_states.shape)  # type: ignore[no-any-return]


class ExchangingMoE(MoE):
    """For few expert-parallel ranks: whole tokens are exchanged while other parts of the layer compute.

        forward:  gather tokens | router; then experts; scatter sums | shared experts
        backward: gather the output's gradient | shared experts; gather tokens | experts; scatter | fc1's gradient, router

    The part behind a bar runs during the exchange in front of it. A rank receives the routing for its experts only, 4 bytes per
    token and expert. `lt_train.parallel.token_exchange` describes the messages, and why more ranks than experts per token use
    `DispatchingMoE`.
    """

    def _output(self, hidden_states: Tensor) -> Tensor:
        exchange = TokenExchange(self.groups.ep)
        tokens = send(hidden_states.reshape(-1, hidden_states.shape[-1]), exchange)
        probabilities, routing_map = self.router(hidden_states)
        # One tensor carries the map and the probabilities. NOT_CHOSEN is negative, because a chosen expert's probability may be
        # 0.
        columns = local_expert_columns(torch.where(routing_map, probabilities, NOT_CHOSEN), self.groups.ep)
        most = min(self.config.moe_router_topk, columns.shape[1])
        routing = self._partial_routing(columns != NOT_CHOSEN, most)
        sums, _ = self.experts(tokens, ExchangedRows(routing, exchange), columns)
        shared = self._shared(hidden_states)
        output: Tensor = self.experts.with_bias(receive(sums, exchange), probabilities).view(hidden_states.shape)
        return output if shared is None else output + shared


class DispatchingMoE(MoE):
    """Dispatches with megatron-core: all-to-all sends a copy of a token per expert, all-gather sends all tokens.

    Nothing overlaps.
    """

    def __init__(self, config: TransformerConfig, *parts: Any):
        super().__init__(config, *parts)
        ranks, rank = self.groups.ep.size(), self.groups.ep.rank()
        count = config.num_moe_experts // ranks
        kinds = {"alltoall": MoEAlltoAllTokenDispatcher, "allgather": MoEAllGatherTokenDispatcher}
        dispatcher = kinds[config.moe_token_dispatcher_type]
        numbers = list(range(rank * count, (rank + 1) * count))
        # Without a capacity, the dispatcher takes the number of rows for tokens times experts per token.
        dispatched = copy.copy(config)
        dispatched.moe_expert_capacity_factor = self.router.capacity_factor
        self.token_dispatcher = dispatcher(count, numbers, config=dispatched, pg_collection=self.groups)

    def _routed(self, hidden_states: Tensor, probabilities: Tensor, routing_map: Tensor) -> Tensor:
        dispatcher = self.token_dispatcher
        tokens = dispatcher.dispatch_preprocess(hidden_states, routing_map, probabilities)
        rows, counts, probabilities = dispatcher.dispatch_postprocess(*dispatcher.token_dispatch(*tokens))
        outputs, _ = self.experts(rows, counts, probabilities)
        outputs = dispatcher.token_combine(dispatcher.combine_preprocess(outputs))
        return dispatcher.combine_postprocess(outputs)  # type: ignore[no-any-return]
