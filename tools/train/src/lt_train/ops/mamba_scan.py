"""The recurrence of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060), computed in chunks by torch's matrix products.

Every head has a state S [n, p], zero where a document begins. A token with value x [p], input B [n], output C [n], time step d
and decay rate a, at most 0, does

    S = exp(a d) S + B (d x)
    output = C S

Within a chunk, the outputs are a causal product of C, B and x, weighted by the decay between two tokens. Only the state passes
from chunk to chunk. Everything is float32, as in the published models.
"""

import torch
from torch import Tensor

from lt_train.ops.chunks import in_chunks, visibility

CHUNK = 64


def mamba_scan(
    values: Tensor, inputs: Tensor, outputs: Tensor, steps: Tensor, rates: Tensor, numbers: Tensor | None = None
) -> Tensor:
    """Return the outputs [b, s, heads, p], float32.

    `values` are [b, s, heads, p]; `inputs` and `outputs`, B and C, are [b, s, groups, n], and consecutive heads share a group.
    `steps` [b, s, heads] and `rates` [heads] are float32. `numbers` [b, s] are the tokens' document numbers, None if a sample is
    one document.
    """
    length, groups = inputs.shape[1:3]
    chunk = min(CHUNK, length)
    padding = -length % chunk
    # [b, chunks, groups, 1, tokens, n], and [b, chunks, groups, heads per group, tokens, p].
    inputs, outputs = (in_chunks(part.float(), chunk, padding, groups) for part in (inputs, outputs))
    stepped = in_chunks(values.float() * steps.unsqueeze(-1), chunk, padding, groups)
    # The logarithm of the decay from the chunk's beginning to each token.
    decays = in_chunks((steps * rates).unsqueeze(-1), chunk, padding, groups).squeeze(-1).cumsum(-1)
    visible, reads, writes, carries = visibility(numbers, chunk, padding, values.device)
    between = (decays.unsqueeze(-1) - decays.unsqueeze(-2)).masked_fill(~visible, float("-inf")).exp()
    within = (outputs @ inputs.transpose(-1, -2) * between) @ stepped
    from_start = (decays.exp() * reads).unsqueeze(-1)
    to_end = ((decays[..., -1:] - decays).exp() * writes).unsqueeze(-1)
    over_chunk = (decays[..., -1].exp() * carries)[..., None, None]
    written = inputs.transpose(-1, -2) @ (stepped * to_end)

    state = torch.zeros_like(written[:, 0])
    states = []
    # The gradient of an index is a tensor of all chunks: 2.0 of a step's 2.4 s at 32,768 tokens (H200). That of unbind is one.
    for chunk_decay, chunk_written in zip(over_chunk.unbind(1), written.unbind(1), strict=True):
        states.append(state)
        state = state * chunk_decay + chunk_written
    mixed = within + from_start * (outputs @ torch.stack(states, dim=1))
    # [b, chunks, groups, heads per group, tokens, p] to [b, s, heads, p].
    return mixed.permute(0, 1, 4, 2, 3, 5).reshape(values.shape[0], -1, *values.shape[2:])[:, :length]
