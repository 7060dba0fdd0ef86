"""Log files in, event records out: `log_files` yields the blocks of many files, `log_parser` turns their lines into records.

A line goes through the prefilter, then to the line template that fits, or to the parsers of `formats`. `runs`, `collect` and
`views` call it; it knows nothing of runs.
"""
