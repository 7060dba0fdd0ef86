"""Find the fastest layout that fits, and estimate a rank's memory, from the configuration alone.

For `lt-train plan` and `--parallel auto`.
"""
