"""Formats of log lines that report a fault or the end of a job, one module for each source; `table` lists all parsers."""
