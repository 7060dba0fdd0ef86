"""Pickles from strangers: read without executing their code, and within bounds of memory and time."""

from lt_shared.pickles.unpickler import (
    ARCHIVE,
    NOT_AN_ARCHIVE,
    Record,
    load_known,
    load_plain,
    load_torch_file,
    load_torch_object,
    loads,
    names,
    names_and_object,
    pickle_member,
    torch_pickle,
)

__all__ = [
    "ARCHIVE",
    "NOT_AN_ARCHIVE",
    "Record",
    "load_known",
    "load_plain",
    "load_torch_file",
    "load_torch_object",
    "loads",
    "names",
    "names_and_object",
    "pickle_member",
    "torch_pickle",
]
