"""What is converted and into what: a checkpoint's model and tensors under canonical names, and what travels with them.

Canonical names are those of Hugging Face. Whatever has no place there (padding rows of the vocabulary, the state of the training)
has its own field, so that no format's writer can forget it silently.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.mapping import Model
from lt_shared.tokenizer_files import TokenizerFiles


@dataclasses.dataclass(frozen=True)
class OptimizerState:
    """AdamW's state under canonical names.

    `moments["exp_avg"]`, `moments["exp_avg_sq"]`, and `moments["param"]`, the fp32 weights that Megatron keeps. `step` counts the
    updates; `groups` are the hyperparameters that were in use (lr, betas, eps ...). `tokens` is how many tokens were trained on,
    0 when nothing says it. `problem` says why a state that is there cannot be converted.
    """

    moments: Mapping[str, Mapping[str, Tensor]]
    step: int
    groups: Mapping[str, Any]
    tokens: int = 0
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint. `table` names the table of tensors that it was read with, `left_out` has the keys without a place elsewhere.

    `tensors` are the model's under canonical names, padding rows among them. `copies` are tensors that the format has besides and
    that must repeat others: (name, tensor, what it has to equal). `details` is what `inspect` shows of the training.
    `special_ids` are the ids of special tokens that the model's configuration names, None where it has no place for them;
    `generation` is the content of its `generation_config.json`.
    """

    directory: str
    format: str
    table: str
    model: Model
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerFiles | None
    iteration: int | None = None
    loss: float | None = None
    optimizer: OptimizerState | None = None
    left_out: tuple[str, ...] = ()
    copies: tuple[tuple[str, Tensor, Tensor], ...] = ()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    special_ids: Mapping[str, Any] | None = None
    generation: bytes | None = None

    @property
    def dtype(self) -> str:
        """The dtype that stands for the model: its embedding's, which is the first tensor."""
        return next(iter(self.tensors.values())).dtype


@dataclasses.dataclass(frozen=True)
class Layout:
    """How many files a legacy checkpoint is split into: tensor, pipeline and virtual pipeline parallel sizes.

    Its names are those of TransformerEngine's layers, Megatron-LM's default, or of its local ones.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int | None = None
    local_layers: bool = False


ALONE = Layout()


@dataclasses.dataclass(frozen=True)
class Result:
    """What a writer gets: the source, its canonical tensors (cast, where that was asked for) and where they will be.

    `destination` is the final directory, for what mentions its own place.
    """

    source: Source
    tensors: Mapping[str, Tensor]
    destination: str
    layout: Layout = ALONE

    @property
    def model(self) -> Model:
        return self.source.model
