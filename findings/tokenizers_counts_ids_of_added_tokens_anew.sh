#!/usr/bin/env bash
# tokenizers 0.20.0, 0.23.3 and 1.0.0rc3, Python 3.11, 2026-11-30.
#
# A tokenizer.json states the id of each added token. No version reads it: each counts the ids anew. In a vocabulary with a gap
# (a 0, b 1, c 4), tokenizers 0.20.0 saves the added tokens c (4) and <x> (5), and reads them so. 0.22 and newer give <x> the id 3,
# and a third token the id 4, which c has, without an error. Added tokens in another order than their ids get ids in the order of
# the file until 0.23.3, and in the order of the ids that it states since 1.0.0rc3. The same file makes other ids of a text.
#
# Seen, for a file that states c 4, <x> 5, <y> 6:
#   0.20.0: c 4, <x> 5, <y> 6
#   0.23.3: c 4, <x> 3, <y> 4
#   1.0.0rc3: c 4, <x> 3, <y> 4
# and for one that states <x> 6, <y> 5:
#   0.20.0: <x> 3, <y> 4
#   0.23.3: <x> 3, <y> 4
#   1.0.0rc3: <x> 4, <y> 3
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/ids.py" <<'PYTHON'
import json
import sys

from tokenizers import Tokenizer

model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 4}, "unk_token": "a"}
flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
for stated in ({"c": 4, "<x>": 5, "<y>": 6}, {"<x>": 6, "<y>": 5}):
    added = [{"id": number, "content": content, **flags} for content, number in stated.items()]
    none = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    content = {"version": "1.0", **none, "added_tokens": added, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    path = f"{sys.argv[1]}/tokenizer.json"
    with open(path, "w") as file:
        json.dump(content, file)
    tokenizer = Tokenizer.from_file(path)
    ids = {token: tokenizer.encode(token, add_special_tokens=False).ids for token in stated}
    print(", ".join(f"{token} {number}" for token, (number,) in ids.items()))
PYTHON

python3 -m venv "$directory/environment"
"$directory/environment/bin/pip" install --quiet numpy==2.4.6 huggingface-hub==2.4.0
seen=""
for version in 0.20.0 0.23.3 1.0.0rc3; do
    "$directory/environment/bin/pip" install --quiet --no-deps --target "$directory/$version" "tokenizers==$version"
    ids=$(PYTHONPATH="$directory/$version" "$directory/environment/bin/python" "$directory/ids.py" "$directory" | paste -sd '|')
    echo "$version: ${ids/|/; }"
    seen+="$ids "
done
expected="c 4, <x> 5, <y> 6|<x> 3, <y> 4 c 4, <x> 3, <y> 4|<x> 3, <y> 4 c 4, <x> 3, <y> 4|<x> 4, <y> 3 "
[[ $seen == "$expected" ]] || { echo "this has changed" >&2; exit 1; }
