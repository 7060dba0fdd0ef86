"""The commands: convert, verify and inspect.

`conversion` opens a checkpoint through `formats`, asks another format for its output files, and has `output_writer` write them.
"""
