"""Replacements of megatron-core's and torch's functions: a file per upstream module, and no replacement elsewhere.

A file lists the replaced functions and values of its upstream module, the releases that were read, and the functions' parameters
in these releases (`UPSTREAM`). Rooms above pass the replacement; the file assigns it, and refuses every argument that the
replacement would ignore. docs/megatron-core.md lists every replacement, with the reason and the release that makes it
unnecessary.

`tests/train/megatron` compares the recorded parameters with the installed packages and passes every function an unknown argument.
"""
