"""Pickles from strangers: read without executing their code, and within bounds of memory and time."""

from lt_shared.pickles.unpickler import Record, load_known, load_next, load_plain, loads, names, names_and_object

__all__ = [
    "Record",
    "load_known",
    "load_next",
    "load_plain",
    "loads",
    "names",
    "names_and_object",
]
