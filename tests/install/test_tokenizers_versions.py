"""lt-preprocess gives the same ids with every version of the tokenizers package from 0.20 to the newest pre-release of 1.0."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import resolution
import tokenizers
import uv
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors

DEMO = resolution.ROOT / "tests/demo/tokenizer"
TEXTS = [
    "The Unix system isn't  old.\n\n1970",
    "e\u0301 \u212b na\u00efve \u65e5\u672c <|endoftext|> a1",
    "\tx = [1, 22, 333]\r\n",
]
# The encoder in Python takes what has no compiled pattern.
CODE = """
import json, sys
from lt_preprocess import load_tokenizer
from lt_preprocess.texts import Texts
from lt_shared.console import ToolError
import tokenizers
outcomes = [tokenizers.__version__]
for path in sys.argv[2:]:
    try:
        tokenizer = load_tokenizer(path)
        outcomes.append([tokenizer.encode(text).tolist() for text in json.loads(sys.argv[1])])
    except ToolError as error:
        outcomes.append(f"{error} [{error.hint}]")
print(json.dumps(outcomes))
"""


def outcomes(paths: list[Path], place: Path | None) -> list[Any]:
    environment = os.environ | ({"PYTHONPATH": str(place)} if place else {})
    command = [sys.executable, "-c", CODE, json.dumps(TEXTS), *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A file that is compiled with its normal form, of a model and of a pattern that only libraries read, and GPT-2's files."""
    root = tmp_path_factory.mktemp("tokenizers")
    compiled = tokenizers.ByteLevelBPETokenizer(str(DEMO / "vocab.json"), str(DEMO / "merges.txt"))
    compiled.normalizer = normalizers.NFC()
    compiled.add_special_tokens(["<|endoftext|>"])
    compiled.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 2047)])
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "The": 1, "Unix": 2, "[UNK]": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens(["[UNK]"])
    strange = tokenizers.ByteLevelBPETokenizer(str(DEMO / "vocab.json"), str(DEMO / "merges.txt"))
    split = pre_tokenizers.Split(Regex(r"\p{Arabic}|\d"), "isolated")
    strange.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    for name, tokenizer in (("compiled", compiled), ("words", words), ("strange", strange)):
        (root / name).mkdir()
        tokenizer.save(str(root / name / "tokenizer.json"))
    return [root / "compiled", root / "words", DEMO, root / "strange"]


@pytest.mark.parametrize("requirement", ["tokenizers==0.20.0", "tokenizers>=1.0.0rc3"])
def test_ids_do_not_depend_on_the_version(requirement: str, paths: list[Path], tmp_path: Path) -> None:
    pip = (uv.find_uv_bin(), "pip", "install", "--quiet", "--no-config", "--no-deps", "--python", sys.executable)
    subprocess.run([*pip, "--prerelease", "allow", "--target", tmp_path, requirement], check=True)
    _, *expected = outcomes(paths, None)
    version, *ids = outcomes(paths, tmp_path)
    assert version.startswith(("0.20.", "1."))
    assert ids[:3] == expected[:3]
    assert all(isinstance(one, list) for one in expected)
    if version.startswith("0"):
        assert ids == expected
    else:
        assert "strange/tokenizer.json: tokenizers 1" in ids[3] and "cannot encode a text: this `Split` pattern" in ids[3]
        assert "pip install 'tokenizers<1'" in ids[3]
