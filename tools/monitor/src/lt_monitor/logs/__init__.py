"""Read log files into event records.

`log_files` yields the blocks of many files, and `log_parser` turns the lines of a block into records. In `fast`, the prefilter
drops lines without a keyword, and line templates read step lines of a known shape by columns. The parsers of `trainers` and
`formats` read all other lines one by one. No module here knows about runs.
"""
