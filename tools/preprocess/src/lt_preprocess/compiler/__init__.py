"""Compile functions with numba, cache their object code, and give compiled code memory addresses and vector instructions."""
