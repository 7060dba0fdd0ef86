"""What passes between formats: a checkpoint's model and tensors under canonical names, and everything else that is converted.

Canonical names are Hugging Face's. What Hugging Face files do not have (padding rows of the vocabulary, optimizer state) has a
field of its own, so that no format drops it silently.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_convert.tensors.tensor import Tensor
from lt_convert.weights.mapping import Model
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles


@dataclasses.dataclass(frozen=True)
class OptimizerState:
    """AdamW's state under canonical names.

    `tensors` has "exp_avg" and "exp_avg_sq", and "param", the fp32 main weights, where Megatron stored them. `step` counts the
    updates; `hyperparameters` are those in use (lr, betas, eps ...). `tokens` is how many tokens were trained on, 0 when the
    checkpoint does not say it. `schedule` has the bounds of the learning rate and weight decay, which identify megatron-core's
    groups, and is empty for other trainers' checkpoints. `problem` says why the state cannot be converted, and is empty
    when it can. `is_flat` says that it was stored in flat buffers, which fit one pipeline and tensor parallel size.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    step: int
    hyperparameters: Mapping[str, Any]
    tokens: int = 0
    schedule: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""
    is_flat: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint that has been opened; no tensor has been read.

    `table` names the table of weight ops for its tensors. `tensors` are the model's under canonical names, with the padding rows.
    `aliases` are pairs of tensors that must be equal: (name, tensor, the other tensor). `left_out` has the keys of the training
    state that are not converted, `other_parts` the keys outside the language model. `details` is the training state that
    `inspect` shows. `special_ids` are the ids of special tokens in the model's configuration, None for a format without such
    ids; `generation` is the content of `generation_config.json`. `quantization` describes the storage of quantized weights;
    `tensors` have their values. `is_partial` says that files of the format are missing (an index, config.json), so that a
    conversion to the same format is useful. `beside` are files that are carried unchanged (model card, licence), `not_carried`
    the names of further files. `state_files` are files of training state that are left out. `averages` are the trained averages
    of the weights in float32, under the names of `tensors`; None for a checkpoint without them.
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
    other_parts: tuple[str, ...] = ()
    aliases: tuple[tuple[str, Tensor, Tensor], ...] = ()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    special_ids: Mapping[str, Any] | None = None
    generation: bytes | None = None
    quantization: str = ""
    is_partial: bool = False
    beside: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    not_carried: tuple[str, ...] = ()
    state_files: tuple[str, ...] = ()
    averages: Mapping[str, Tensor] | None = None

    @property
    def dtype(self) -> str:
        """The dtype of the embedding, which is the first tensor; other tensors may have others."""
        return next(iter(self.tensors.values())).dtype


@dataclasses.dataclass(frozen=True)
class LegacyTarget:
    """The parallel sizes and the layers of a legacy checkpoint.

    Tensors are named as in TransformerEngine layers, Megatron-LM's default, or with `local_layers` as in its local layers.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    virtual_pipeline_parallel_size: int | None = None
    local_layers: bool = False


ONE_RANK = LegacyTarget()


@dataclasses.dataclass(frozen=True)
class Target:
    """The input of a format's `outputs`: the source, its canonical tensors after any cast, and the destination.

    `destination` is the final directory, for files that name their own path. With `quantize`, weights are written in block fp8.
    """

    source: Source
    tensors: Mapping[str, Tensor]
    destination: str
    legacy_target: LegacyTarget = ONE_RANK
    quantize: bool = False

    @property
    def model(self) -> Model:
        return self.source.model
