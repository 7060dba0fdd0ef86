"""Kernels for GPUs, in Triton: everything but GEMMs and attention, each with as few passes over memory as it needs.

A training step of a dense model is GEMMs, attention, and a dozen operations whose time is the bytes they move. torch
alone passes over the largest tensors two to four times as often as is needed; these kernels fuse what touches the same numbers.
Each module is an autograd function or two with its kernels; PERFORMANCE.md says what each one gains.
"""

# Below it, a tensor is taken for zeros when it is scaled to fp8.
SMALLEST_AMAX = 1e-12
# Numbers of a row that share a scale, and the width and height of the blocks of a weight that do, in DeepSeek's recipe.
FP8_BLOCK = 128
