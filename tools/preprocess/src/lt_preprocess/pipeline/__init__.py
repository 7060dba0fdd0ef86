"""A plan in, a finished dataset out: chunks go to the encoders, sequences are assembled, `.bin` and `.idx` appear at the end.

`run` drives it and `journal` lets a killed run resume; the command line calls `plan`, then `run`.
"""
