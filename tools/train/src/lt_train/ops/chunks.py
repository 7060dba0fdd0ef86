"""Samples in chunks of tokens, for states that pass from chunk to chunk, and documents that end within a chunk."""

import torch
from torch import Tensor


def in_chunks(heads: Tensor, chunk: int, padding: int, groups: int) -> Tensor:
    """Pad `heads` [b, s, heads, d] with `padding` tokens and return [b, chunks, groups, heads per group, tokens, d]."""
    padded = torch.nn.functional.pad(heads, (0, 0, 0, 0, 0, padding))
    shape = (heads.shape[0], -1, chunk, groups, heads.shape[2] // groups, heads.shape[3])
    return padded.reshape(shape).permute(0, 1, 3, 4, 2, 5)


def visibility(numbers: Tensor | None, chunk: int, padding: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return which tokens see which, read the state before their chunk, and write to the state after it, and whether it carries.

    `numbers` [b, s] are document numbers, None if a sample is one document. The first is [.., tokens, tokens], the next two
    [.., tokens], the last [..], for all of [b, chunks, groups, heads].
    """
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=device).tril()
    if numbers is None:
        everywhere = torch.ones((), device=device)
        return causal, everywhere, everywhere, everywhere
    # Padding belongs to the last document, and writes nothing.
    in_chunks = torch.nn.functional.pad(numbers.unsqueeze(1).float(), (0, padding), mode="replicate").squeeze(1)
    in_chunks = in_chunks.reshape(len(numbers), -1, chunk)[:, :, None, None]
    last = in_chunks[..., -1:]
    before = torch.cat((last[:, :1] * 0, last[:, :-1]), dim=1)
    visible = causal & (in_chunks.unsqueeze(-1) == in_chunks.unsqueeze(-2))
    reads, writes = (in_chunks == border for border in (before, last))
    return visible, reads.float(), writes.float(), (before == last).squeeze(-1).float()
