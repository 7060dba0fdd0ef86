#!/usr/bin/env bash
# transformers 5.23.0, tokenizers 0.23.3, Python 3.11, 2026-11-29.
#
# A tokenizer.json has a Lowercase normalizer and splits numbers into digits. With "tokenizer_class": "GPT2Tokenizer" (or
# GPT2TokenizerFast) in tokenizer_config.json, AutoTokenizer of transformers 5 takes vocabulary and merges from the file and builds
# normalizer and pre-tokenizer of the class anew, without a warning: "AB" is no longer lowered, and other ids come out. With
# "PreTrainedTokenizerFast" the same file is used as it is. transformers 4.57.6 uses the file as it is with both names.
#
# Seen:
#   5.23.0 GPT2Tokenizer: differs from tokenizer.json
#   5.23.0 PreTrainedTokenizerFast: as tokenizer.json
#   4.57.6 GPT2Tokenizer: as tokenizer.json
#   4.57.6 PreTrainedTokenizerFast: as tokenizer.json
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/compare.py" <<'PYTHON'
import json
import os
import sys

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

letters = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
tokenizer.normalizer = normalizers.Lowercase()
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
for class_name in ("GPT2Tokenizer", "PreTrainedTokenizerFast"):
    directory = os.path.join(sys.argv[1], f"{transformers.__version__}-{class_name}")
    os.makedirs(directory)
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": class_name}, file)
    loaded = transformers.AutoTokenizer.from_pretrained(directory)
    same = loaded("AB 12", add_special_tokens=False)["input_ids"] == tokenizer.encode("AB 12").ids
    print(f"{transformers.__version__} {class_name}: {'as' if same else 'differs from'} tokenizer.json")
PYTHON

for packages in "transformers==5.23.0 tokenizers==0.23.3" "transformers==4.57.6 tokenizers==0.22.2"; do
    python3 -m venv --clear "$directory/venv"
    # shellcheck disable=SC2086
    "$directory/venv/bin/pip" install --quiet --disable-pip-version-check $packages
    "$directory/venv/bin/python" "$directory/compare.py" "$directory" | tee -a "$directory/seen"
done
diff "$directory/seen" - <<'EXPECTED'
5.23.0 GPT2Tokenizer: differs from tokenizer.json
5.23.0 PreTrainedTokenizerFast: as tokenizer.json
4.57.6 GPT2Tokenizer: as tokenizer.json
4.57.6 PreTrainedTokenizerFast: as tokenizer.json
EXPECTED
