"""Megatron's torch_dist with the layers of HybridModel, which `pretrain_hybrid.py` trains: attention and MLP have own numbers.

`torch_dist` reads and writes it; the table of weights and Megatron's arguments differ.
"""

from collections.abc import Sequence

from lt_convert import formats
from lt_convert.formats.checkpoint import Source, Target
from lt_convert.formats.megatron import torch_dist
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_convert.weights.mapping import MEGATRON_HYBRID

TABLE = MEGATRON_HYBRID


def recognise(names: Sequence[str]) -> bool:
    """Return False: its files have the names of GPTModel's (`torch_dist.is_hybrid`)."""
    return False


def open_source(directory: str, files: Files) -> Source:
    """Raises as `torch_dist.open_source`."""
    return torch_dist.open_source(directory, files, formats.MEGATRON_HYBRID)


def outputs(target: Target) -> list[OutputFile]:
    """A run directory as `torch_dist.outputs` writes it. Raises BadData for a model that HybridModel cannot have."""
    return torch_dist.outputs(target, TABLE)
