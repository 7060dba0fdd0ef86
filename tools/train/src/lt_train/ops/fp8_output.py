"""The settings of an output layer in fp8, for `fp8_linear_cross_entropy`, which needs Triton."""

import dataclasses

from lt_train.ops.fp8_casts import TritonCasts


@dataclasses.dataclass(frozen=True)
class Fp8Output:
    """`casts_logits`: the logits are a product in fp8, not only the two GEMMs of the backward pass.

    `fast` accumulates logits in fewer bits than float32, as the other layers' forward pass does.
    """

    casts: TritonCasts
    casts_logits: bool
    fast: bool = True
