"""The order of a fused AdamW step; its numbers are in test_fused_layer.py and kernels/test_adamw.py."""

import torch

from lt_train.optim.fused_adamw import FusedAdamW, ParameterBuffers


class Bucket:
    """Notes the weights at the moment they are sent."""

    def __init__(self, weights: list[torch.Tensor], seen: list[list[bool]]):
        self.weights, self.seen = weights, seen

    def start_param_sync(self) -> None:
        self.seen.append([bool(weight.eq(1).all()) for weight in self.weights])


def test_weights_of_a_bucket_are_sent_before_those_of_the_next_are_updated() -> None:
    weights = [torch.ones(3) for _ in range(3)]
    seen: list[list[bool]] = []
    last, first, empty = (Bucket(weights, seen) for _ in range(3))
    masters = [torch.nn.Parameter(weight) for weight in weights]
    buffers = [
        ParameterBuffers(master, weight, None, torch.ones(3), True, bucket)
        for master, weight, bucket in zip(masters, weights, (last, first, first), strict=True)
    ]
    FusedAdamW([{"params": masters, "lr": 0.1}], buffers, [first, empty, last]).step()
    unchanged, changed = True, False
    assert seen == [[unchanged, changed, changed], [unchanged, changed, changed], [changed] * 3]
