"""Prints the parameters of every function that lt-train replaces, as the installed megatron-core and torch have them.

A JSON object by name: the parameters without annotations, null for a compiled function, VALUE for all else, ABSENT for a name
that this release lacks or only instances have. In a process of its own, in which nothing is replaced.
"""

import importlib
import inspect
import json
from typing import Any

from replacement_page import upstreams

from lt_train.megatron.upstream import Upstream

ABSENT = "absent"
VALUE = "value"


def installed(upstream: Upstream, name: str) -> str | None:
    try:
        found: Any = importlib.import_module(upstream.module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return ABSENT
    return parameters(found) if name in upstream.signatures or inspect.isroutine(found) else VALUE


def parameters(function: Any) -> str | None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def main() -> None:
    records = [upstream for of_file in upstreams().values() for upstream in of_file]
    print(
        json.dumps(
            {
                upstream.qualified(name): installed(upstream, name)
                for upstream in records
                for name in (*upstream.signatures, *upstream.values)
            }
        )
    )


if __name__ == "__main__":
    main()
