"""What the command line does: a conversion from plan to published directory, its verification, an inspection.

`conversion` opens a checkpoint through `formats`, asks for the output files of another format, and lets `writer` write them.
"""
