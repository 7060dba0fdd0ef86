"""Differentiable operations of a layer, each with its forward and backward pass, made of `kernels`."""
