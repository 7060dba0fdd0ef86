"""What compiled code is made of: numba with a cache for this machine, intrinsics of its instruction set, blocks of bytes."""
