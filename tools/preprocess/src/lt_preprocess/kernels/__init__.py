"""What compiled code is made of: numba with a cache on disk, memory by address and bit counts, vector instructions."""
