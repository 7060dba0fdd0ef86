"""Kernels for GPUs, in Triton, for all operations but GEMMs and attention. Every kernel passes over memory as rarely as it can.

A training step of a dense model is GEMMs, attention, and a dozen operations whose time is the bytes they move. torch alone passes
over the largest tensors two to four times as often as necessary; these kernels fuse operations on the same numbers. A module
has one or two autograd functions with their kernels; PERFORMANCE.md has the gain of each module.
"""

# A tensor with a smaller amax is scaled to fp8 as if its amax were this.
SMALLEST_AMAX = 1e-12
# DeepSeek's recipe has a scale for 128 consecutive numbers of a row, and for 128 x 128 blocks of a weight.
FP8_BLOCK = 128
