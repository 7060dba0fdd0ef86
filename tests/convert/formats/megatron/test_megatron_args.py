"""The arguments that Megatron-LM stores in a checkpoint."""

from typing import Any

import pytest

from lt_convert.formats.megatron import megatron_args
from lt_shared.models.megatron_arguments import to_arguments
from lt_shared.models.presets import preset

VOCABULARY = 319
NULL = {"tokenizer_type": "NullTokenizer", "vocab_size": VOCABULARY, "padded_vocab_size": 384}


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        # `_NullTokenizer.vocab_size` in megatron/training/tokenizer/tokenizer.py, core_v0.12.0 to core_v0.17.1.
        (NULL, VOCABULARY + 1),
        (NULL | {"padded_vocab_size": None}, VOCABULARY + 1),
        (NULL | {"padded_vocab_size": VOCABULARY}, VOCABULARY),
        # `NullTokenizer` in megatron/core/tokenizers/text/libraries/null_tokenizer.py, core_v0.18.2 and newer.
        (NULL | {"null_tokenizer_eod_id": None}, VOCABULARY),
        (NULL | {"tokenizer_type": "HuggingFaceTokenizer"}, VOCABULARY),
    ],
)
def test_the_null_tokenizer_has_an_end_of_document_behind_its_vocabulary(arguments: dict[str, Any], rows: int) -> None:
    stored = to_arguments(preset("llama3.2-1b")) | arguments
    assert megatron_args.architecture(stored, "checkpoint", "model").vocab_size == rows
