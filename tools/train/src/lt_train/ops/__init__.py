"""Differentiable operations of a layer: autograd functions that combine `kernels` and GEMMs."""
