"""Recognise YAML that another program composes or turns into a trainer's command line, and translate it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_train.importers.composed import autoexp, functional_test, nanotron, primus
from lt_train.importers.ledger import Translation

HYP = "hyp-pytorch-job"


def translate(content: dict[str, Any], file: Path, overrides: Mapping[str, Any]) -> Translation | None:
    """Translate the content of a YAML file, or return None if it is of none of these programs. Raises BadData."""
    if primus.is_experiment(content):
        return primus.translate(content, file, overrides)
    if autoexp.is_experiment(content, file):
        return autoexp.translate(content, file, overrides)
    if functional_test.is_test(content):
        return functional_test.translate(content, overrides)
    if nanotron.is_configuration(content):
        return nanotron.translate(content, overrides)
    if str(content.get("template", "")).startswith("hyp-"):
        return _job_of_hyp(content)
    return None


def _job_of_hyp(content: Mapping[str, Any]) -> Translation:
    """A job of HyperPod's CLI has an image and a command, and may start pretrain_gpt.py."""
    words = [str(word) for key in ("command", "args") for word in content.get(key) or () if isinstance(content.get(key), list)]
    if content.get("template") == HYP and any(word.endswith("pretrain_gpt.py") for word in words):
        return functional_test.translate_words(words)
    raise BadData(
        f"a job of HyperPod's hyp ({content['template']}): it names an image and a command, and no model",
        "import the configuration that its command reads; lt-train render k8s writes the job",
    )
