"""Calling `lt-train render`, checking what it prints, and running its shell with stand-ins for the programs of a cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import kubernetes_validate
import yaml
from click.testing import CliRunner, Result

from lt_train.commands.render import command
from lt_train.render import stage_check

SCHEMAS = Path(__file__).parent / "render/schemas"
KUBERNETES_VERSION = "1.30"
OPERATORS = ("PyTorchJob", "HyperPodPyTorchJob", "JobSet", "TrainJob", "TrainingRuntime")


def render(*arguments: str) -> str:
    """What `lt-train render ARGUMENTS` prints on standard output. Raises what it raises."""
    return _invoke(*arguments).stdout


def remarks(*arguments: str) -> str:
    """What `lt-train render ARGUMENTS` says on standard error."""
    return _invoke(*arguments).stderr


def _invoke(*arguments: str) -> Result:
    with mock.patch.object(stage_check, "check", _check_once):
        return CliRunner().invoke(command, list(arguments), catch_exceptions=False, standalone_mode=False)


_check_by_tool = stage_check.check
_accepted: set[tuple[object, ...]] = set()


def _check_once(stage: str, words: Sequence[str], operands: Sequence[str] = ()) -> None:
    """Ask a tool once about the same words: each answer takes half a second."""
    question = (stage_check._program(f"lt-{stage}"), os.getcwd(), tuple(words), tuple(operands))
    if question not in _accepted:
        _check_by_tool(stage, words, operands)
        _accepted.add(question)


def shellcheck(script: str) -> None:
    """Fail for anything that shellcheck remarks on."""
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([program, "-s", "bash", "-"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{script}"


def manifests(*arguments: str) -> list[dict[str, Any]]:
    """The documents that are printed, each valid for Kubernetes, their shell for shellcheck."""
    documents = list(yaml.safe_load_all(render(*arguments)))
    for document in documents:
        if document["kind"] in OPERATORS:
            _validate_operated(document)
        else:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
        for script in scripts(document):
            shellcheck(script)
    return documents


def training_pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The specifications of the pods of an operator's object, one for each of its templates."""
    if document["kind"] == "PyTorchJob":
        return [replica["template"]["spec"] for replica in document["spec"]["pytorchReplicaSpecs"].values()]
    if document["kind"] == "HyperPodPyTorchJob":
        return [replica["template"]["spec"] for replica in document["spec"]["replicaSpecs"]]
    sets = {"JobSet": lambda spec: spec, "TrainingRuntime": lambda spec: spec["template"]["spec"]}
    if document["kind"] not in sets:
        return []
    jobs = sets[document["kind"]](document["spec"])["replicatedJobs"]
    return [job["template"]["spec"]["template"]["spec"] for job in jobs]


def training_command(documents: list[dict[str, Any]]) -> list[str]:
    """The command of the containers that train, the same in all pods."""
    commands = [pod["containers"][0]["command"] for document in documents for pod in training_pods(document)]
    assert all(command == commands[0] for command in commands)
    return list(map(str, commands[0]))


def _validate_operated(document: dict[str, Any]) -> None:
    schema = json.loads((SCHEMAS / f"{document['kind'].lower()}.json").read_text())
    jsonschema.validate(document, schema)
    if document["kind"] == "TrainingRuntime":
        template = document["spec"]["template"]["spec"]
        _validate_operated({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {}, "spec": template})
    if document["kind"] == "JobSet":
        for replicated in document["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": replicated["template"]["spec"]}
            kubernetes_validate.validate(job, KUBERNETES_VERSION, strict=True)
    for pod in training_pods(document):
        template = {"apiVersion": "v1", "kind": "PodTemplate", "template": {"spec": pod}}
        kubernetes_validate.validate(template, KUBERNETES_VERSION, strict=True)


def scripts(document: Any) -> Iterator[str]:
    """Every text that a manifest gives to bash."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "command" and value[:2] == ["bash", "-c"]:
                yield value[2]
            else:
                yield from scripts(value)
    elif isinstance(document, list):
        for entry in document:
            yield from scripts(entry)


class Cluster:
    """A directory of stand-ins: each writes its name and arguments to `calls`, then runs the body that it was given."""

    def __init__(self, directory: Path):
        self.directory = directory
        (directory / "bin").mkdir()
        self.add("scontrol", "")
        # Runs the command after its own options, as one task.
        self.add("srun", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')

    def add(self, name: str, body: str) -> None:
        file = self.directory / "bin" / name
        file.write_text(f'#!/bin/bash\necho {name} "$@" >> {self.directory}/calls\n{body}\n')
        file.chmod(0o755)

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (self.directory / "calls").write_text("")
        environment = os.environ | {
            "PATH": f"{self.directory}/bin:/usr/bin:/bin",
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NUM_NODES": "2",
        }
        return subprocess.run(
            ["bash"], input=script, env=environment | variables, cwd=self.directory, capture_output=True, text=True, timeout=60
        )

    @property
    def calls(self) -> list[str]:
        return (self.directory / "calls").read_text().splitlines()
