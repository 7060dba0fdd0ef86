"""A model of transformers, converted, has its loss and its gradient in lt-train, and comes back bit for bit: every family that no
other test takes through all three packages."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy
import nursery
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, Mistral4ForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, GatedDelta, Mamba
from lt_shared.models.presets import preset

SEQUENCE = 64
SMALL: dict[str, Any] = {"hidden_size": 64, "ffn_hidden_size": 96, "kv_channels": 16, "vocab_size": 250}
WINDOW = 16
TOKENS = numpy.array([(7 * position * position + 3) % 250 for position in range(SEQUENCE + 1)], numpy.uint16)


def small(name: str, **changes: Any) -> Architecture:
    base = preset(name)
    changes = {"moe_aux_loss_coeff": 0.0} | changes if base.num_experts else changes
    factor = {"embedding_multiplier": 8.0} if base.embedding_multiplier != 1 else {}
    return dataclasses.replace(base, **(SMALL | factor | changes))


# transformers saves the three parts of the convolution as if they were equal.
EVEN = dataclasses.replace(preset("tiny-olmo-hybrid").gated_delta or GatedDelta((0,)), linear_value_head_dim=24)
LARGE_STEPS = dataclasses.replace(preset("tiny-nemotron-h").mamba or Mamba((0,), 8), least_step=1.3)
WIDE_MAMBA = preset("tiny-bamba").mamba or Mamba((0,), 8)
SIDE_BY_SIDE = dataclasses.replace(preset("tiny-falcon-h1").mamba or Mamba((0,), 8), mamba_num_heads=4, mamba_head_dim=16)
ARCHITECTURES = {
    "olmo2": small("tiny-olmo2"),
    "olmo3": small("tiny-olmo3", sliding_window=WINDOW),
    "gemma2": small("tiny-gemma2", sliding_window=WINDOW, softmax_scale=24**-0.5, attn_logit_softcapping=5.0),
    "gemma3": small("tiny-gemma3", sliding_window=WINDOW, softmax_scale=24**-0.5),
    "gemma": small("tiny-gemma"),
    "smollm3": small("tiny-smollm3"),
    "exaone4": small("tiny-exaone4", sliding_window=WINDOW),
    "arcee": small("tiny-arcee"),
    "apertus": small("tiny-apertus"),
    "nemotron": small("tiny-nemotron"),
    "starcoder2": small("tiny-starcoder2", sliding_window=WINDOW),
    "helium": small("tiny-helium"),
    "ernie4.5": small("tiny-ernie4.5"),
    "glm": small("tiny-glm"),
    "glm4": small("tiny-glm4"),
    "qwen2-moe": small("tiny-qwen2-moe"),
    "qwen3-next": small("tiny-qwen3-next"),
    "qwen3.5": small("tiny-qwen3.5"),
    "olmo-hybrid": small("tiny-olmo-hybrid", gated_delta=EVEN),
    "olmo-hybrid-rotated": small("tiny-olmo-hybrid", gated_delta=EVEN, no_rope_freq=None),
    "qwen3.5-moe": small("tiny-qwen3.5-moe"),
    "lfm2": small("tiny-lfm2"),
    "lfm2-moe": small("tiny-lfm2-moe", moe_ffn_hidden_size=48),
    # Some time steps are smaller than the least one.
    "nemotron-h": small("tiny-nemotron-h", mamba=LARGE_STEPS),
    "bamba": small("tiny-bamba", mamba=dataclasses.replace(WIDE_MAMBA, mamba_num_heads=8)),
    "falcon-h1": small("tiny-falcon-h1", mamba=SIDE_BY_SIDE),
    "falcon-h1-norm": small("tiny-falcon-h1", mamba=dataclasses.replace(SIDE_BY_SIDE, has_norm=True)),
    "granite4-h": small("tiny-granite4-h", mamba=dataclasses.replace(WIDE_MAMBA, mamba_num_groups=2, mamba_num_heads=8)),
    "granite4-h-moe": small(
        "tiny-granitemoeshared",
        model_type="granitemoehybrid",
        mamba=dataclasses.replace(WIDE_MAMBA, mamba_num_heads=8, convolution_bias=False),
    ),
    "nemotron-h-moe": small("tiny-nemotron-h-moe", moe_ffn_hidden_size=48, moe_shared_expert_intermediate_size=96),
    "olmoe": small("tiny-olmoe"),
    "minimax-m2": small("tiny-minimax-m2"),
    "seed-oss": small("tiny-seed-oss"),
    "dots1": small("tiny-dots1"),
    "granitemoe": small("tiny-granitemoe"),
    "granitemoeshared": small("tiny-granitemoeshared"),
    "granite4": small("tiny-granite4"),
    "granite4-moe": small("tiny-granitemoeshared", model_type="granitemoehybrid"),
    "ernie4.5-moe": small("tiny-ernie4.5-moe", moe_ffn_hidden_size=48, moe_shared_expert_intermediate_size=96),
    "hunyuan-moe": small("tiny-hunyuan-moe", moe_shared_expert_intermediate_size=96),
    "cohere": small("tiny-cohere"),
    "cohere2": small("tiny-cohere2", sliding_window=WINDOW),
    "olmo": small("tiny-olmo", clip_qkv=1.0),
    "ministral3": small("tiny-ministral3"),
    "hunyuan": small("tiny-hunyuan"),
    "mistral4": small("tiny-mistral4", kv_channels=0, moe_shared_expert_intermediate_size=96),
    "kimi-linear": small(
        "tiny-kimi-linear",
        kv_channels=0,
        gated_delta=GatedDelta((0, 1, 2), 2, 2, 16, 16, decays_channels=True),
        moe_ffn_hidden_size=48,
        moe_shared_expert_intermediate_size=48,
    ),
    "glm4-moe-lite": small("tiny-glm4-moe-lite", kv_channels=0),
    "deepseek-v3.2": small("tiny-deepseek-v32", kv_channels=0, mtp_num_layers=0),
    "glm-5": small("tiny-glm-5", kv_channels=0, mtp_num_layers=0),
}


def random_model(architecture: Architecture) -> Any:
    torch.manual_seed(1)
    config = AutoConfig.for_model(**huggingface.to_config(architecture, "float32"))
    if config.model_type == "mistral4":
        # transformers 5.23's AutoModelForCausalLM does not know it.
        model: Any = Mistral4ForCausalLM._from_config(config, attn_implementation="eager")
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    # The embedding of a padding token would have no gradient.
    model.get_input_embeddings().padding_idx = None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() == 1 else 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0, 0.3)
    return model.eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_loss_is_transformers_and_the_weights_come_back(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]
    model = random_model(architecture)
    model.save_pretrained(tmp_path / "model")
    convert(Request(str(tmp_path / "model"), "megatron-dist", str(tmp_path / "start")))
    step = first_step(tmp_path)
    tokens = torch.from_numpy(TOKENS.astype(numpy.int64))
    loss = torch.nn.functional.cross_entropy(model(tokens[None, :-1]).logits[0], tokens[1:])
    loss.backward()
    gradients = [parameter.grad.square().sum() for parameter in model.parameters() if parameter.grad is not None]
    assert loss > 3
    assert step["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert step["grad_norm"] == pytest.approx(sum(gradients).sqrt().item(), rel=1e-4)
    convert(Request(str(tmp_path / "run"), "hf", str(tmp_path / "back")))
    there, back = (load_file(tmp_path / which / "model.safetensors") for which in ("model", "back"))
    # transformers writes a dense layer of Kimi Linear under the prefix of experts, unlike the published files.
    there = {re.sub(r"block_sparse_moe(?=\.(gate|up|down)_proj)", "mlp", key): value for key, value in there.items()}
    assert there.keys() == back.keys()
    assert all(torch.equal(there[key], back[key]) for key in there)


@pytest.mark.parametrize("name", ["qwen3-next", "olmo-hybrid", "lfm2", "kimi-linear", "nemotron-h", "granite4-h", "falcon-h1"])
def test_a_state_begins_anew_with_every_document(name: str, tmp_path: Path) -> None:
    """Three documents in a sample, one longer than a chunk: loss and gradient of transformers, which computes each alone."""
    model = random_model(ARCHITECTURES[name])
    model.save_pretrained(tmp_path / "model")
    convert(Request(str(tmp_path / "model"), "megatron-dist", str(tmp_path / "start")))
    end = 249
    lengths = (20, 71, 38)
    tokens = numpy.resize(TOKENS, max(lengths)) % end
    documents = [numpy.append(tokens[: length - 1], end) for length in lengths]
    step = first_step(tmp_path, documents, end, "--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss")
    parts = [torch.from_numpy(document.astype(numpy.int64)) for document in documents]
    sums = [torch.nn.functional.cross_entropy(model(part[None, :-1]).logits[0], part[1:], reduction="sum") for part in parts]
    loss = sum(sums) / (sum(lengths) - len(lengths))
    loss.backward()
    gradients = [parameter.grad.square().sum() for parameter in model.parameters() if parameter.grad is not None]
    assert step["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert step["grad_norm"] == pytest.approx(sum(gradients).sqrt().item(), rel=1e-4)


def first_step(place: Path, documents: Any = (TOKENS,), end: int | None = None, *options: str) -> dict[str, float]:
    """The record of a step on the only sample of a dataset that is too small to change a weight."""
    with indexed_dataset.Writer(str(place / "data"), numpy.uint16) as writer:
        for document in documents:
            writer.append_document(document.astype(numpy.uint16))
        writer.publish()
    data = manifest.record_of(manifest.Dataset(str(place / "data"), eod=end))
    sequence = sum(map(len, documents)) - 1
    command = [
        *(nursery.python(), "-m", "lt_train", "--model", place / "model", "--load", place / "start", "--save", place / "run"),
        *("--seq-length", sequence, "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 1, "--lr", 1e-30),
        *("--min-lr", 0, "--weight-decay", 0, "--split", "1,0,0", "--eval-iters", 0, "--log-interval", 1, "--device", "cpu"),
        *("--moe-router-bias-update-rate", 0, "--no-load-optim", "--no-load-rng", "--ranks", 1, *options, "-"),
    ]
    lines = "".join(json.dumps(record) + "\n" for record in (data, {"v": 1, "kind": "end", "count": 1}))
    done = subprocess.run(list(map(str, command)), input=lines, capture_output=True, text=True, timeout=900, env=os.environ)
    assert done.returncode == 0, done.stderr
    records = map(json.loads, (place / "run/metrics.jsonl").read_text().splitlines())
    return next(record for record in records if record["kind"] == "step")
