"""Write planned files to a destination: complete or not at all, resumed after a kill, with a record of their sources.

The commands call `result`. It checks the destination (`occupancy`), lets `output_writer` or `remote_writer` write the files,
or `part_writer` a part of them, and ends with the record (`receipt`) that a later run, `verify` and `--force` read.
"""
