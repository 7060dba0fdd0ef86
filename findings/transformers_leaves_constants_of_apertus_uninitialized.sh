#!/usr/bin/env bash
# transformers 5.23.0, torch 2.13.0, safetensors 0.8.0, Python 3.11, 2026-11-30.
#
# Apertus has two constants in every layer, act_fn.beta (0.5) and act_fn.eps (-1e-6), which transformers registers as persistent
# buffers. A checkpoint without them, as another program writes that knows them to be constants, loads with a report of missing keys,
# and the constants are then whatever was in memory: from_pretrained does not give them the values that from_config gives.
#
# Seen, with numbers that vary:
#   missing: model.layers.0.mlp.act_fn.beta
#   from_config: 0.5
#   from_pretrained: not 0.5
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/load.py" <<'PYTHON'
import os
import sys

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
import torch
from safetensors.torch import load_file, save_file
from transformers import ApertusConfig, ApertusForCausalLM

config = ApertusConfig(
    vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, pad_token_id=None
)
model = ApertusForCausalLM(config)
model.save_pretrained(sys.argv[1])
path = os.path.join(sys.argv[1], "model.safetensors")
tensors = {name: tensor for name, tensor in load_file(path).items() if not name.endswith(("act_fn.beta", "act_fn.eps"))}
save_file(tensors, path, {"format": "pt"})
# Memory that is given back is what an uninitialized tensor gets.
blocks = [torch.full((1,), 7.0) for _ in range(10000)]
del blocks
loaded, report = ApertusForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
name = "model.layers.0.mlp.act_fn.beta"
print("missing:", *sorted(key for key in report["missing_keys"] if key == name))
for origin, made in (("from_config", model), ("from_pretrained", loaded)):
    value = dict(made.named_buffers())[name].item()
    print(f"{origin}: {'0.5' if value == 0.5 else 'not 0.5'}")
PYTHON
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check numpy transformers==5.23.0 torch==2.13.0 safetensors==0.8.0
"$directory/venv/bin/python" "$directory/load.py" "$directory/model" 2>/dev/null | tee "$directory/output"
diff "$directory/output" - <<'EXPECTED'
missing: model.layers.0.mlp.act_fn.beta
from_config: 0.5
from_pretrained: not 0.5
EXPECTED
