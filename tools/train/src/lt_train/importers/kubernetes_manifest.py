"""The command of pretrain_gpt.py in a Kubernetes manifest or template: a PyTorchJob, an MPIJob, a JobSet or a Pod.

In every kind, a container has `command` and `args`, and in `env` the values of its variables. envsubst fills in templates before
they are applied; if neither the manifest nor --set has a variable, the error asks for it, as in a script.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lt_shared.console import BadData
from lt_shared.files.strict_yaml import loads_all
from lt_train.importers import megatron_lm
from lt_train.importers.shell.command import ShellCommand

SHELLS = re.compile(r"(.*/)?(ba|z|da)?sh")
# A container's words refer to its own variables as $(NAME), and to a template's variables as ${NAME} or $NAME.
OF_CONTAINER = re.compile(r"\$\((\w+)\)")
KIND = re.compile(r"^kind:", re.MULTILINE)
API = re.compile(r"^apiVersion:", re.MULTILINE)


def is_manifest(text: str) -> bool:
    """Whether `text` has an object of Kubernetes at its top; a template that is no YAML may."""
    return KIND.search(text) is not None and API.search(text) is not None


def command_in(text: str, given: Mapping[str, str]) -> ShellCommand:
    """The command of the first container that starts pretrain_gpt.py. Raises BadData without one."""
    try:
        containers = list(_containers(loads_all(text)))
    except ValueError as error:
        raise BadData(f"not YAML: {error}", "a template may have variables where YAML has values, and nowhere else") from None
    other: BadData | None = None
    for container in containers:
        words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
        variables = _variables(container) | dict(given)
        words = [OF_CONTAINER.sub(r"${\1}", word) for word in words]
        is_script = SHELLS.fullmatch(words[0]) is not None and len(words) > 1
        try:
            return megatron_lm.command_in(words[-1] if is_script else _as_script(words), variables)
        except BadData as error:
            # Of a sidecar nobody wants to know that it trains nothing.
            if other is None or "starts" in str(error):
                other = error
    raise other or BadData("no container with a command", "pass the command: lt-train import -- torchrun ... pretrain_gpt.py ...")


def _containers(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the containers of an object in the order of the file, after the init containers."""
    if isinstance(node, dict):
        if isinstance(node.get("command") or node.get("args"), list):
            yield node
        for child in node.values():
            yield from _containers(child)
    elif isinstance(node, list):
        for child in node:
            yield from _containers(child)


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    entries = container.get("env")
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {str(entry["name"]): str(entry["value"]) for entry in named if "name" in entry and "value" in entry}


def _as_script(words: list[str]) -> str:
    """Put each word in double quotes, so that the shell reader expands the variables in it."""
    return " ".join('"' + re.sub(r'(["\\`])', r"\\\1", word) + '"' for word in words)
