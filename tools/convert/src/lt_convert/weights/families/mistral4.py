"""The Mistral 4 family: DeepSeek's tensors, with a layer's experts stacked in Hugging Face's files.

megatron-core and TorchTitan have no temperature of queries: only torch_dist and lt-train's models have these. The published model
has a vision tower, of which the language model alone is read.
"""

import dataclasses
from collections.abc import Mapping

from lt_convert.weights.families import deepseek, expert_layers, ministral3
from lt_convert.weights.mapping import MEGATRON, Shape, Table
from lt_convert.weights.placeholders import EXPERT, EXPERT_LAYER
from lt_convert.weights.weight_ops import Experts, ExpertSlice, Rows
from lt_shared.models.architecture import Architecture

_GATE_UP, _DOWN = (f"{expert_layers.EXPERT}mlp.experts.{name}_proj" for name in ("gate_up", "down"))


def _shapes(architecture: Architecture) -> Mapping[str, Shape]:
    experts, hidden, width = architecture.num_experts or 0, architecture.hidden_size, architecture.expert_size
    others = {name: shape for name, shape in deepseek.shapes(architecture).items() if EXPERT not in name}
    return others | {_GATE_UP: (experts, 2 * width, hidden), _DOWN: (experts, hidden, width)}


_EXPERTS = f"decoder.layers.{EXPERT_LAYER}.mlp.experts.experts."
_TABLE: Table = {
    **deepseek.DEEPSEEK.tables[MEGATRON],
    f"{_EXPERTS}linear_fc1.weight": Experts(ExpertSlice(Rows(_GATE_UP))),
    f"{_EXPERTS}linear_fc2.weight": Experts(ExpertSlice(Rows(_DOWN))),
}
MISTRAL4 = dataclasses.replace(
    deepseek.DEEPSEEK,
    name="mistral4",
    shapes=_shapes,
    tables={MEGATRON: _TABLE},
    hf_prefixes=ministral3.MINISTRAL3.hf_prefixes,
    other_parts=ministral3.MINISTRAL3.other_parts,
)
