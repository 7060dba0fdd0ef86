#!/usr/bin/env bash
# transformers 5.23.0, torch 2.13.0, safetensors 0.8.0, Python 3.11, 2026-11-30.
#
# OLMo Hybrid's files have the convolutions of queries, keys and values as three tensors, which transformers concatenates when it
# loads them. save_pretrained divides them again into three equal parts, although the published models have twice as many channels
# of values as of queries or keys. transformers loads its own files without a loss; another program that reads v_conv1d gets channels
# of keys in it, or refuses its shape.
#
# Seen:
#   projections: q 48, k 48, v 96
#   convolutions: q 64, k 64, v 64
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/save.py" <<'PYTHON'
import os
import sys

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
from safetensors.torch import load_file
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM

config = OlmoHybridConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    linear_key_head_dim=24,
    linear_value_head_dim=48,
    pad_token_id=None,
    eos_token_id=None,
)
OlmoHybridForCausalLM(config).save_pretrained(sys.argv[1])
tensors = load_file(os.path.join(sys.argv[1], "model.safetensors"))
for kind, part in (("projections", "proj"), ("convolutions", "conv1d")):
    rows = (f"{letter} {len(tensors[f'model.layers.0.linear_attn.{letter}_{part}.weight'])}" for letter in "qkv")
    print(f"{kind}: {', '.join(rows)}")
PYTHON
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check numpy transformers==5.23.0 torch==2.13.0 safetensors==0.8.0
"$directory/venv/bin/python" "$directory/save.py" "$directory/model" 2>/dev/null | tee "$directory/output"
diff "$directory/output" - <<'EXPECTED'
projections: q 48, k 48, v 96
convolutions: q 64, k 64, v 64
EXPECTED
