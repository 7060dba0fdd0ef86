"""What lt-train replaces in megatron-core and torch: one file per upstream module, and no replacement elsewhere.

A file names the functions and values of its module that are replaced, the releases that were read, and each function's parameters
there (`UPSTREAM`). Rooms above hand in what shall be called instead; the file assigns it and refuses every argument that its
replacement would pass over. docs/megatron-core.md lists every replacement, with the reason and the release that makes it
unnecessary.

`tests/train/megatron` compares the recorded parameters with the installed packages and passes every function an unknown argument.
"""
