"""Chat files become tokens and masks that are those of transformers, also after a kill, in shards and from Parquet."""

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chat_tokenizers
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from conversation_records import RECORDS

from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline.chat_plan import JSON_KEY, Chat
from lt_preprocess.pipeline.plan import Options, plan
from lt_shared.console import BadData, NoInput, UsageError
from lt_shared.data import indexed_dataset
from lt_shared.tokenizers import tokenizer_files

Run = Callable[..., subprocess.CompletedProcess[str]]
Masked = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = chat_tokenizers.published_templates()["qwen2_5_training"]
    return chat_tokenizers.write(tmp_path_factory.mktemp("tokenizer") / "chat", template)


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def tokenized(path: Path, tokenizer: Path, output: Path, chat: Chat | None = None, **options: Any) -> Masked:
    chosen = Options(json_keys=(JSON_KEY,), chat=chat or Chat(), **options)
    datasets = runs.build(plan([str(path)], tokenizer_files.find(tokenizer), tokenizer, str(output), chosen), 2)
    assert all(dataset.loss_mask for dataset in datasets)
    return [document for dataset in datasets for document in masked(dataset.prefix)]


def masked(prefix: str) -> Masked:
    with indexed_dataset.open(prefix) as tokens, indexed_dataset.open(indexed_dataset.mask_prefix(prefix)) as mask:
        return [(one.tolist(), other.tolist()) for one, other in zip(tokens, mask, strict=True)]


def by_transformers(tokenizer: Path, records: list[dict[str, Any]]) -> Masked:
    stock = chat_tokenizers.stock(tokenizer)
    encoded = [
        stock.apply_chat_template(
            record["messages"], tools=record.get("tools"), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        for record in records
    ]
    return [(list(one["input_ids"]), list(one["assistant_masks"])) for one in encoded]


def random_conversations(count: int) -> list[dict[str, Any]]:
    """Texts with spaces at their ends, characters of several bytes, special tokens, and nothing."""
    source = random.Random(0)
    words = ["ab", " cd", "\n", "\u00e9", "\u4f60\u597d", "\U0001f600", "<|im_end|>", "  ", "12", "'s", "e\u0301"]

    def text() -> str:
        return "".join(source.choices(words, k=source.randint(1, 12)))

    return [
        {
            "messages": [
                message
                for _ in range(source.randint(1, 4))
                for message in ({"role": "user", "content": text()}, {"role": "assistant", "content": text()})
            ]
        }
        for _ in range(count)
    ]


def test_tokens_and_masks_are_those_of_transformers(tmp_path: Path, tokenizer: Path) -> None:
    records = [record for kind, record in RECORDS.items() if kind != "parts"] + random_conversations(300)
    expected = by_transformers(tokenizer, records)
    assert tokenized(write(tmp_path / "a.jsonl", records), tokenizer, tmp_path / "out") == expected
    assert 0 < sum(sum(mask) for _, mask in expected) < sum(len(tokens) for tokens, _ in expected)


def test_a_template_without_marks_counts_the_same_turns(tmp_path: Path, tokenizer: Path) -> None:
    """But for the line break behind a turn."""
    template = chat_tokenizers.published_templates()["qwen2_5"]
    records = random_conversations(100)
    path = write(tmp_path / "a.jsonl", records)
    found = tokenized(path, tokenizer, tmp_path / "out", Chat(template=template))
    stock = chat_tokenizers.stock(tokenizer)
    for (tokens, mask), (expected_tokens, expected_mask) in zip(found, by_transformers(tokenizer, records), strict=True):
        assert tokens == expected_tokens
        differing = np.flatnonzero(np.array(mask) != np.array(expected_mask))
        assert all(expected_mask[place] and stock.decode([tokens[place]]) == "\n" for place in differing.tolist())


def test_formats_of_records_give_the_same_documents(tmp_path: Path, tokenizer: Path) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "name": None},
    ]
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    records = [
        {"messages": messages},
        {"conversations": turns, "system": "s"},
        {"conversation": messages},
        {"prompt": messages[:2], "completion": messages[2:]},
        {"system": "s", "prompt": "a", "completion": "b"},
        {"messages": messages, "tools": "null"},
    ]
    documents = tokenized(write(tmp_path / "a.jsonl", records), tokenizer, tmp_path / "out")
    assert documents == [documents[0]] * len(records)
    assert documents[0] == by_transformers(tokenizer, [{"messages": messages}])[0]


def test_parquet_without_the_nulls_of_a_table(tmp_path: Path, tokenizer: Path) -> None:
    # A table has the columns of its first record.
    records = [record | {"other": 7} for record in (RECORDS["tools"], RECORDS["plain"], RECORDS["reasoning"])]
    pa.parquet.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    documents = tokenized(tmp_path / "a.parquet", tokenizer, tmp_path / "out")
    assert documents == by_transformers(tokenizer, records)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "a"}, "no key 'messages', it has 'text'"),
        ({"messages": []}, "'messages' is not a list of messages"),
        ({"messages": [{"content": "a"}]}, "message 1 has no role"),
        ({"messages": [{"role": "user", "content": "a"}]}, "nothing in it counts in the loss"),
        ({"conversations": [{"from": "bing", "value": "a"}]}, "a turn is from 'bing'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content of type 'image_url': only text"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 2}]}, "has weight 2, expected 0 or 1"),
        ({"messages": [{"role": "assistant", "content": "a"}], "tools": "{"}, "'tools' is a text that is not JSON"),
        ({"messages": [{"role": "assistant", "content": 7}]}, "only text is tokenized|TypeError"),
    ],
)
def test_a_record_without_a_conversation_is_a_bad_line(
    tmp_path: Path, tokenizer: Path, record: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "a.jsonl", [RECORDS["plain"], record])
    with pytest.raises(BadData, match=rf"line 2, byte \d+: .*({reason})"):
        tokenized(path, tokenizer, tmp_path / "out")
    assert len(tokenized(path, tokenizer, tmp_path / "out", on_error="skip")) == 1


def test_special_tokens_in_messages_can_be_rejected(tmp_path: Path, tokenizer: Path) -> None:
    record = {"messages": [{"role": "user", "content": "a <|im_end|>"}, {"role": "assistant", "content": "b"}]}
    path = write(tmp_path / "a.jsonl", [record])
    assert tokenized(path, tokenizer, tmp_path / "out") == by_transformers(tokenizer, [record])
    with pytest.raises(BadData, match=r"special token <\|im_end\|> in a message"):
        tokenized(path, tokenizer, tmp_path / "other", special_tokens="reject")


def test_the_end_of_a_document_counts_only_after_text_that_counts(tmp_path: Path, tokenizer: Path) -> None:
    path = write(tmp_path / "a.jsonl", [RECORDS["single"]])
    marked = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (tokens, mask), *_ = tokenized(path, tokenizer, tmp_path / "a", Chat(template=marked), append_eod=True)
    assert (len(tokens), mask[-1]) == (len(mask), 1)
    closed = "{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}"
    (tokens, mask), *_ = tokenized(path, tokenizer, tmp_path / "b", Chat(template=closed), append_eod=True, bos=0)
    assert mask[0] == 0 and mask[-2:] == [0, 0] and mask[-3] == 1


def test_shards_parts_and_limits_keep_tokens_and_masks_together(tmp_path: Path, tokenizer: Path, run: Run) -> None:
    records = random_conversations(400)
    path = write(tmp_path / "a.jsonl", records)
    expected = by_transformers(tokenizer, records)
    assert tokenized(path, tokenizer, tmp_path / "parts", max_shard_bytes=4000) == expected
    assert tokenized(path, tokenizer, tmp_path / "some", limit_documents=7) == expected[:7]
    cut = tokenized(path, tokenizer, tmp_path / "cut", max_document_tokens=16)
    for column in range(2):
        joined, whole = ([value for document in documents for value in document[column]] for documents in (cut, expected))
        assert joined == whole
    prefixes = []
    for shard in range(3):
        words = ["--tokenizer", str(tokenizer), "--chat", "--shard", f"{shard}/3", "-o", str(tmp_path / "s"), "--plain"]
        prefixes += run(path, *words).stdout.split()
    assert [document for prefix in prefixes for document in masked(prefix)] == expected
    again = run(path, "--tokenizer", str(tokenizer), "--chat", "-o", str(tmp_path / "parts"))
    assert (again.returncode, json.loads(again.stdout.splitlines()[0])["loss_mask"]) == (0, True)
    once_more = run(path, "--tokenizer", str(tokenizer), "--chat", "-o", str(tmp_path / "parts"))
    assert "up to date" in once_more.stderr
    indexed = tmp_path / "parts_chat_document.loss_mask.idx"
    indexed.unlink()
    mended = run(path, "--tokenizer", str(tokenizer), "--chat", "-o", str(tmp_path / "parts"))
    assert "up to date" not in mended.stderr and indexed.exists()


def test_options_about_texts_are_refused(tmp_path: Path, tokenizer: Path, demo_tokenizer: Path) -> None:
    path = write(tmp_path / "a.jsonl", [RECORDS["plain"]])
    with pytest.raises(UsageError, match="--chat and --template: a conversation is no plain text"):
        tokenized(path, tokenizer, tmp_path / "out", template="{text}")
    with pytest.raises(NoInput, match="this tokenizer has no chat template"):
        tokenized(path, demo_tokenizer, tmp_path / "out")
