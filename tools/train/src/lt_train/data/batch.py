"""The tensors of a micro batch."""

from typing import NotRequired, TypedDict

from torch import Tensor


class Batch(TypedDict):
    """A micro batch of b samples of s tokens, on the device of the rank that trains on it.

    `documents` is set with --reset-attention-mask: the first positions of the documents, and the end of the last document.
    `weight` is the weight of the micro batch, if samples of its step are skipped. `sources` are the numbers of the samples'
    datasets, in the training data of a blend.
    """

    tokens: Tensor  # int64 [b, s]
    labels: Tensor  # int64 [b, s]
    position_ids: Tensor  # int64 [b, s]
    loss_mask: Tensor  # float32 [b, s]
    documents: NotRequired[Tensor]  # int32 [b, n + 1]
    weight: NotRequired[Tensor]  # float32 []
    sources: NotRequired[Tensor]  # int64 [b]
