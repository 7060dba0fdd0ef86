"""Families that megatron-core lacks: a model of transformers, converted, has its loss in lt-train, and comes back bit for bit."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy
import nursery
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.data import indexed_dataset
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture
from lt_shared.models.presets import preset

SEQUENCE = 64
SMALL: dict[str, Any] = {"hidden_size": 64, "ffn_hidden_size": 96, "kv_channels": 16, "vocab_size": 250}
WINDOW = 16
TOKENS = numpy.array([(7 * position * position + 3) % 250 for position in range(SEQUENCE + 1)], numpy.uint16)


def small(name: str, **changes: Any) -> Architecture:
    base = preset(name)
    factor = {"embedding_multiplier": 8.0} if base.embedding_multiplier != 1 else {}
    return dataclasses.replace(base, **SMALL, **factor, **changes)


ARCHITECTURES = {
    "olmo2": small("tiny-olmo2"),
    "olmo3": small("tiny-olmo3", sliding_window=WINDOW),
    "gemma2": small("tiny-gemma2", sliding_window=WINDOW, softmax_scale=24**-0.5, attn_logit_softcapping=5.0),
    "gemma3": small("tiny-gemma3", sliding_window=WINDOW, softmax_scale=24**-0.5),
}


def random_model(architecture: Architecture) -> Any:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**huggingface.to_config(architecture, "float32")), attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() == 1 else 0.1)
    return model.eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_loss_is_transformers_and_the_weights_come_back(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]
    model = random_model(architecture)
    model.save_pretrained(tmp_path / "model")
    convert(Request(str(tmp_path / "model"), "megatron-dist", str(tmp_path / "start")))
    loss = trained_loss(tmp_path)
    tokens = torch.from_numpy(TOKENS.astype(numpy.int64))
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model(tokens[None, :-1]).logits[0], tokens[1:])
    assert expected > 3
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    convert(Request(str(tmp_path / "run"), "hf", str(tmp_path / "back")))
    there, back = (load_file(tmp_path / which / "model.safetensors") for which in ("model", "back"))
    assert there.keys() == back.keys()
    assert all(torch.equal(there[key], back[key]) for key in there)


def trained_loss(place: Path) -> float:
    """Of the only sample of a dataset, by a step that is too small to change a weight."""
    with indexed_dataset.Writer(str(place / "data"), numpy.uint16) as writer:
        writer.append_document(TOKENS)
        writer.publish()
    command = [
        *(nursery.python(), "-m", "lt_train", "--model", place / "model", "--load", place / "start", "--save", place / "run"),
        *("--seq-length", SEQUENCE, "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 1, "--lr", 1e-30),
        *("--min-lr", 0, "--weight-decay", 0, "--split", "1,0,0", "--eval-iters", 0, "--log-interval", 1, "--device", "cpu"),
        *("--no-load-optim", "--no-load-rng", "--ranks", 1, place / "data"),
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, env=os.environ)
    assert done.returncode == 0, done.stderr
    records = map(json.loads, (place / "run/metrics.jsonl").read_text().splitlines())
    return float(next(record["loss"] for record in records if record["kind"] == "step"))
