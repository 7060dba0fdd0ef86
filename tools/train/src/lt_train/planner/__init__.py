"""Which layout fits and is fastest, and what a rank will hold, from the configuration alone; `lt-train plan` and `--parallel
auto`.
"""
