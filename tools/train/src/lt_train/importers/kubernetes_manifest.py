"""Find the command of pretrain_gpt.py in a Kubernetes manifest: a PyTorchJob, an MPIJob, a JobSet, a Pod, or a template.

In all kinds a container has `command` and `args`, and `env` sets variables. envsubst fills in templates before kubectl applies
them. As in a script, a variable that neither the manifest nor --set defines is reported as missing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lt_shared.console import BadData
from lt_shared.files.strict_yaml import loads_all
from lt_train.importers import megatron_lm
from lt_train.importers.shell.command import ShellCommand

SHELLS = re.compile(r"(.*/)?(ba|z|da)?sh")
# Kubernetes expands $(NAME) in `command` and `args`; envsubst expands ${NAME} and $NAME.
OF_CONTAINER = re.compile(r"\$\((\w+)\)")
KIND = re.compile(r"^kind:", re.MULTILINE)
API = re.compile(r"^apiVersion:", re.MULTILINE)


def is_manifest(text: str) -> bool:
    """Whether `text` has the top-level keys of a Kubernetes object. A template need not be valid YAML, so a regex decides."""
    return KIND.search(text) is not None and API.search(text) is not None


def command_in(text: str, overrides: Mapping[str, str]) -> ShellCommand:
    """Return the command of the first container that starts pretrain_gpt.py. Raises BadData if no container does."""
    try:
        containers = list(_containers(loads_all(text)))
    except ValueError as error:
        raise BadData(f"not YAML: {error}", "a template may have variables where YAML has values, and nowhere else") from None
    failure: BadData | None = None
    for container in containers:
        words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
        variables = _variables(container) | dict(overrides)
        words = [OF_CONTAINER.sub(r"${\1}", word) for word in words]
        is_script = SHELLS.fullmatch(words[0]) is not None and len(words) > 1
        try:
            return megatron_lm.command_in(words[-1] if is_script else _as_script(words), variables)
        except BadData as error:
            # A sidecar has no training command either. Report the container that starts another training program.
            if failure is None or "starts" in str(error):
                failure = error
    raise failure or BadData(
        "no container with a command", "pass the command: lt-train import -- torchrun ... pretrain_gpt.py ..."
    )


def _containers(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the containers of an object in the order of the file. Any object with `command` or `args` is a container."""
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
    """Quote each word with double quotes, so that the script interpreter expands its variables but does not split it."""
    return " ".join('"' + re.sub(r'(["\\`])', r"\\\1", word) + '"' for word in words)
