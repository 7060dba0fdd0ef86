"""Vectorised reading of log blocks: the keyword prefilter, and line templates that read step lines by columns."""
