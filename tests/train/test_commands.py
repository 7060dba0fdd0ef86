"""lt-train help and lt-train models: what a newcomer asks first."""

import json

import pytest
from running import train

from lt_shared.models import presets


def test_sections_are_listed_with_all_their_options() -> None:
    shown = " ".join(train("help").out.split())
    assert "Parallelism --parallel, --tensor-model-parallel-size, --pipeline-model-parallel-size and 15 more" in shown
    assert "Faults --distributed-timeout-minutes, --max-restarts, --min-nodes and 3 more Reports" in shown
    assert shown.endswith("lt-train help SECTION shows one, lt-train --help all of them.")


@pytest.mark.parametrize("words", [("parallelism",), ("PARALLELISM",), ("paral",)])
def test_a_section_is_found_by_its_name(words: tuple[str, ...]) -> None:
    page = train("help", *words, COLUMNS="80").out
    assert page.startswith("Parallelism:\n  --parallel ")
    whole = train("--help", COLUMNS="80").out
    for line in page.splitlines():
        assert line in whole
    assert "Optimizer:" not in page


def test_several_words_are_one_name() -> None:
    assert train("help", "steps", "and", "batches").out.startswith("Steps and batches:\n")
    assert train("help", "batches").out.startswith("Steps and batches:\n")


def test_options_are_found_by_a_word_of_their_name() -> None:
    page = train("help", "--lr").out
    assert page.startswith("Optimizer:\n") and "  --lr FLOAT" in page and "--min-lr" in page and "--clip-grad" not in page


def test_options_are_found_by_a_word_of_their_description() -> None:
    page = train("help", "infinite").out
    assert page.startswith("Precision:\n") and "  --hysteresis " in page and "--bf16" not in page


def test_what_is_neither_is_refused() -> None:
    done = train("help", "quantum")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "lt-train: error: quantum: neither a section nor an option\nhint: sections: Model, Experts, "
        "Latent attention, Sparse attention, Gated delta layers, Mamba-2 layers, Width transfer, "
    )
    for word, nearest in (("paralelism", "parallelism"), ("weight_decay", "weight-decay")):
        assert train("help", word).err.endswith(f"neither a section nor an option\nhint: did you mean {nearest}?\n")


def test_models() -> None:
    records = [json.loads(line) for line in train("models", "--json").out.splitlines()]
    assert [record["name"] for record in records] == list(presets.PRESETS)
    (llama,) = (record for record in records if record["name"] == "llama3.1-8b")
    # As counted by transformers' model of this shape.
    assert (llama["parameters"], llama["num_layers"], llama["vocab_size"]) == (8_030_261_248, 32, 128256)
    header, *rows = train("models").out.splitlines()
    assert header.split()[:3] == ["name", "parameters", "layers"]
    assert [row.split()[0] for row in rows] == list(presets.PRESETS)
    (row,) = (row for row in rows if row.startswith("llama3.1-8b "))
    assert row.split()[1:] == ["8,030.3", "M", "32", "4096", "32", "8", "-", "131,072", "128,256"]


def test_a_commands_name_may_follow_the_options_of_every_command() -> None:
    quiet, talkative = train("models"), train("-v", "models")
    assert (quiet.code, talkative.code) == (0, 0)
    assert talkative.out == quiet.out != ""
    assert "took" in talkative.err
