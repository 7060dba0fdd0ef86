"""Writes planned files to a destination: complete or not at all, resumed after a kill, with a record of what they are made from.

The commands call `result`. It checks the destination (`occupancy`), has `output_writer` or `remote_writer` write the files, and
ends with the record (`receipt`) that a later run, `verify` and `--force` read.
"""
