"""Write the fields and defaults of upstream's dataclasses into packaged_defaults.json, which `lt-train import` reads.

    python tests/train/upstream_dataclasses.py CHECKOUTS

CHECKOUTS has a folder for each repository below, named NVIDIA+Megatron-LM and so on, at the commit that stands beside it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from lt_train.importers.python import packaged_defaults
from lt_train.importers.python.core import Raised
from lt_train.importers.python.interpreter import Interpreter
from lt_train.importers.python.values import (
    MISSING,
    Class,
    Decorated,
    EnumMember,
    External,
    Function,
    Instance,
    LazyImport,
    Module,
    Unknown,
)

TABLE = Path(packaged_defaults.__file__).with_suffix(".json")
SOURCES = {
    "NVIDIA/Megatron-LM": (
        "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
        ("megatron/core", "megatron/training/config", "megatron/training/models"),
    ),
    "NVIDIA-NeMo/Megatron-Bridge": (
        "067f987df03b8355b03192d88d70f1709fedf51a",
        tuple(
            f"src/megatron/bridge/{folder}" for folder in ("training", "models/*.py", "models/llama", "models/qwen", "models/gpt")
        ),
    ),
    "NVIDIA/NeMo": (
        "8cfedd7203462cb251a914e700e5605444277561",
        ("nemo/collections/llm/gpt/model", "nemo/lightning/pytorch/plugins", "nemo/collections/llm/t5"),
    ),
    "pytorch/torchtitan": (
        "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a",
        tuple(
            f"torchtitan/{folder}"
            for folder in ("config", "trainer.py", "components", "tools/profiler.py", "distributed/activation_checkpoint.py")
        ),
    ),
}
FEWEST = 100
# Methods that no configuration calls.
UNREAD = ("__post_init__", "finalize", "provide", "configure_model", "__init__", "__repr__")
# Dataclasses of settings; the others are parts of layers and of requests.
SETTINGS = re.compile(r"(Config\w*|Provider\w*|v2|Processor)$")


def main(checkouts: Path) -> None:
    classes: dict[str, Any] = {}
    for repository, (_, folders) in SOURCES.items():
        root = checkouts / repository.replace("/", "+")
        for folder in folders:
            files = (
                sorted(root.glob(folder))
                if "*" in folder
                else [root / folder]
                if folder.endswith(".py")
                else sorted((root / folder).rglob("*.py"))
            )
            for file in files:
                for owner in classes_of(file):
                    classes.setdefault(packaged_defaults.key_of(owner.qualified_name), row(owner))
    if len(classes) < FEWEST:
        raise SystemExit(f"{checkouts}: {len(classes)} dataclasses, are the checkouts there?")
    sources = [f"{name} {commit}" for name, (commit, _) in SOURCES.items()]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(classes[name])}" for name in sorted(classes))
    TABLE.write_text(f'{{"source": {json.dumps(sources)},\n "classes": {{\n{lines}\n}}}}\n')
    print(f"{TABLE}: {len(classes)} dataclasses")


def classes_of(file: Path) -> list[Class]:
    interpreter = Interpreter(file)
    module = interpreter.repository.first_module()
    names = interpreter.read_module(module).names
    owners: list[Class] = []
    queue = list(names.values())
    while queue:
        value = queue.pop()
        if isinstance(value, Class) and value.module is module:
            queue.extend(value.namespace.values())
            if value.is_dataclass and SETTINGS.search(value.qualified_name):
                owners.append(value)
                for field in value.own_fields.values():
                    field.factory = built(interpreter, field.factory)
    return owners


def built(interpreter: Interpreter, factory: Any) -> Any:
    """What a lambda or a function of Python makes; a class stays."""
    if isinstance(factory, LazyImport):
        factory = interpreter.resolve_import(factory)
    if isinstance(factory, Function) or (isinstance(factory, External) and factory.name.startswith("builtins.")):
        try:
            return interpreter.call(factory, [], {})
        except Raised as error:
            return Unknown(error.message, error.origin)
    return factory


def row(owner: Class) -> dict[str, Any]:
    bases = [
        base.qualified_name if isinstance(base, Class) else base.name
        for base in owner.bases
        if isinstance(base, Class | External)
    ]
    fields = {name: stored(field.default, field.factory, owner.module) for name, field in owner.own_fields.items()}
    kept = [packaged_defaults.key_of(base) for base in bases if base not in packaged_defaults.EMPTY]
    methods = sorted(name for name, value in owner.namespace.items() if isinstance(value, Function | Decorated))
    return {"bases": kept, "fields": fields, "methods": [name for name in methods if name not in UNREAD]}


def stored(default: Any, factory: Any, module: Module) -> Any:
    if factory is not MISSING:
        if isinstance(factory, Class | External):
            return {"factory": factory.qualified_name if isinstance(factory, Class) else factory.name}
        default = factory
    if default is MISSING:
        return {"required": True}
    if isinstance(default, External):
        return {"external": default.name}
    if isinstance(default, EnumMember):
        return {"external": f"{default.owner.qualified_name}.{default.name}"}
    if isinstance(default, Function):
        return {"external": default.qualified_name}
    if isinstance(default, Class):
        return {"external": default.qualified_name}
    if isinstance(default, Unknown | Instance | LazyImport):
        return {"unknown": default.reason if isinstance(default, Unknown) else "an object"}
    try:
        json.dumps(default)
    except TypeError:
        return {"unknown": "an object"}
    return default


if __name__ == "__main__":
    main(Path(sys.argv[1]))
