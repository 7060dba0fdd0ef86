"""What a router keeps in float32."""

import torch

from lt_train.models.mlps.router import Router


def test_balancing_bias_and_counts_stay_in_float32() -> None:
    router = Router.__new__(Router)
    torch.nn.Module.__init__(router)
    router.weight = torch.nn.Parameter(torch.ones(2, 3))
    for name in ("expert_bias", "local_tokens_per_expert"):
        router.register_buffer(name, torch.zeros(2))
    layer = torch.nn.Sequential(router).bfloat16()
    assert router.weight.dtype == torch.bfloat16
    assert [buffer.dtype for _, buffer in layer.named_buffers()] == [torch.float32] * 2
    router.local_tokens_per_expert += 257
    assert router.local_tokens_per_expert.tolist() == [257, 257]
