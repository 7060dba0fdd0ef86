"""Models with different vocabularies merged by token: each row by hand, and the tokenizer as transformers loads it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from averaged_models import values, write
from click.testing import CliRunner
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

import lt_convert
from lt_convert.cli import merge_command
from lt_shared.console import BadConfig, BadData, UsageError
from lt_shared.models.architecture import Architecture

LLAMA = Architecture("merged", "llama", 1, 32, 40, 4, 2, 250, 64)
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# The tokens behind the alphabet: those of BPE, then added ones. The third model's embedding has no row for its last token.
TOKENS = {
    "one": (["he", "ll"], ["<|end|>"]),
    "two": (["ll", "wo"], ["<|end|>", "<|user|>"]),
    "three": (["wo", "rl"], ["<|user|>", "<|pad|>"]),
}
SIZES = {"one": 259 + 5, "two": 260, "three": 259}


def write_tokenizer(directory: Path, pairs: list[str], added: list[str]) -> None:
    vocabulary = {token: number for number, token in enumerate([*ALPHABET, *pairs])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    tokenizer.save(str(directory / "tokenizer.json"))
    roles = {"eos_token": added[0], **({"pad_token": "<|pad|>"} if "<|pad|>" in added else {})}
    config = {"tokenizer_class": "TokenizersBackend", "chat_template": "{{ messages }}", **roles}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vocabularies")
    paths = {}
    for seed, (name, tokens) in enumerate(TOKENS.items(), 1):
        paths[name] = write(root / name, dataclasses.replace(LLAMA, vocab_size=SIZES[name]), seed, "bfloat16")
        write_tokenizer(paths[name], *tokens)
    return paths


def ids(name: str) -> dict[str, int]:
    tokens = [*ALPHABET, *TOKENS[name][0], *TOKENS[name][1]]
    return {token: number for number, token in enumerate(tokens) if number < SIZES[name]}


def merge(destination: Path, *arguments: Any) -> dict[str, torch.Tensor]:
    command = [str(word) for word in (*arguments, "--to", "hf", "-o", destination)]
    result = CliRunner().invoke(merge_command.merge, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return values(destination)


def by_file(tmp_path: Path, destination: Path, **document: Any) -> dict[str, torch.Tensor]:
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return merge(destination, "--config", tmp_path / "merge.yaml")


def weighted(paths: dict[str, Path], **weights: float) -> list[dict[str, Any]]:
    return [{"model": str(paths[name]), "parameters": {"weight": weight}} for name, weight in weights.items()]


def loaded_ids(directory: Path) -> dict[str, int]:
    return dict(AutoTokenizer.from_pretrained(directory).get_vocab())


def test_a_union_has_the_tokens_of_all(tuned: dict[str, Path], tmp_path: Path) -> None:
    result = merge(
        tmp_path / "made",
        *(f"{tuned[name]}={weight}" for name, weight in (("one", 0.5), ("two", 0.25), ("three", 0.25))),
        *("--method", "linear", "--tokenizer-source", "union"),
    )
    vocabulary = loaded_ids(tmp_path / "made")
    # The first tokenizer's ids stay; then tokens of the vocabularies come, then added tokens.
    added = {"wo": 259, "rl": 260, "<|user|>": 261}
    assert vocabulary == ids("one") | added
    tensors = {name: values(path) for name, path in tuned.items()}
    for weight in (EMBEDDING, OUTPUT):
        assert result[weight].shape == (262, 32)
        rows = {name: {token: tensors[name][weight][row].float() for token, row in ids(name).items()} for name in TOKENS}
        for token, number in vocabulary.items():
            having = [name for name in TOKENS if token in rows[name]]
            # Neither is a base: the average of those that have it, in the models' dtype.
            other = sum(rows[name][token] for name in having).bfloat16() / len(having)
            expected = sum(
                share * rows[name].get(token, other.float()) for name, share in (("one", 0.5), ("two", 0.25), ("three", 0.25))
            )
            torch.testing.assert_close(result[weight][number].float(), expected, rtol=2**-8, atol=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer("world<|user|>hello").input_ids == [vocabulary[t] for t in ("wo", "rl", "d", "<|user|>", "he", "ll", "o")]
    assert tokenizer.decode(tokenizer("wo hello").input_ids) == "wo hello"
    assert tokenizer.chat_template == "{{ messages }}"
    # A class that transformers 4 knows, too.
    assert json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "made").config.vocab_size == 262


def test_a_base_gives_its_rows_to_models_that_lack_a_token(tuned: dict[str, Path], tmp_path: Path) -> None:
    result = by_file(
        tmp_path,
        tmp_path / "made",
        merge_method="task_arithmetic",
        base_model=str(tuned["two"]),
        models=weighted(tuned, one=0.5, three=1.0),
        tokenizer_source="base",
    )
    assert (tmp_path / "made" / "tokenizer.json").read_bytes() == (tuned["two"] / "tokenizer.json").read_bytes()
    base, one, three = (values(tuned[name])[EMBEDDING].float() for name in ("two", "one", "three"))
    # Only the base and the first model have the first token, only the base and the third one the second, only the base none.
    first, second = ids("two")["ll"], ids("two")["wo"]
    expected = base[first] + (0.5 * (one[ids("one")["ll"]] - base[first])).bfloat16().float()
    torch.testing.assert_close(result[EMBEDDING][first].float(), expected, rtol=2**-7, atol=1e-6)
    expected = base[second] + three[ids("three")["wo"]] - base[second]
    torch.testing.assert_close(result[EMBEDDING][second].float(), expected, rtol=2**-7, atol=1e-3)


def test_the_tokenizer_of_another_model(tuned: dict[str, Path], tmp_path: Path) -> None:
    """It has its special tokens' ids, too, and each format has the same values."""
    words = [tuned["one"], tuned["two"], "--method", "linear", "-p", "weight=1", "--tokenizer-source", tuned["three"]]
    result = merge(tmp_path / "made", *words)
    tokens = [*ALPHABET, *TOKENS["three"][0], *TOKENS["three"][1]]
    assert loaded_ids(tmp_path / "made") == {token: number for number, token in enumerate(tokens)}
    # No merged model has the tokens: their rows are zeros. The token of one model alone is that model's.
    assert not result[EMBEDDING][[257, 259]].any()
    assert torch.equal(result[EMBEDDING][256], values(tuned["two"])[EMBEDDING][ids("two")["wo"]])
    sources = [lt_convert.convert(tuned[name], tmp_path / name, "megatron-dist").path for name in ("one", "two")]
    again = merge(tmp_path / "again", *sources, *words[2:])
    assert all(torch.equal(tensor, again[name]) for name, tensor in result.items())
    CliRunner().invoke(merge_command.merge, [*map(str, words), "--to", "megatron-dist", "-o", str(tmp_path / "dist")])
    back = values(Path(lt_convert.convert(tmp_path / "dist", tmp_path / "back").path))
    assert all(torch.equal(tensor, back[name]) for name, tensor in result.items())


def test_rules_for_tokens_and_padding(tuned: dict[str, Path], tmp_path: Path) -> None:
    one, two = (str(tuned[name]) for name in ("one", "two"))
    tokens = {
        "<|end|>": {"source": two, "force": True},
        "<|new|>": {"source": {"kind": "model_token", "model": one, "token": "he"}},
        "<|newer|>": {"source": {"kind": "model_token", "model": two, "token_id": 7}},
        "<|zero|>": {"source": {"kind": "zero"}},
        "a": {"source": {"kind": "zero"}, "force": True},
        "b": {"source": {"kind": "zero"}},
    }
    models = weighted(tuned, one=0.5, two=0.5)
    tokenizer = {"source": "base", "tokens": tokens, "pad_to_multiple_of": 64}
    made = by_file(tmp_path, tmp_path / "made", merge_method="linear", models=models, tokenizer=tokenizer)
    vocabulary = loaded_ids(tmp_path / "made")
    assert vocabulary == ids("one") | {"<|new|>": 259, "<|newer|>": 260, "<|zero|>": 261}
    rows = made[EMBEDDING]
    first, second = (values(tuned[name])[EMBEDDING] for name in ("one", "two"))
    assert rows.shape == (320, 32)
    assert torch.equal(rows[258], second[ids("two")["<|end|>"]])
    assert torch.equal(rows[259], first[256])
    assert torch.equal(rows[260], second[7])
    assert not rows[[vocabulary["<|zero|>"], vocabulary["a"]]].any()
    number = vocabulary["b"]
    assert torch.equal(rows[number], ((first[number].float() + second[number].float()) / 2).bfloat16())
    # The mean of all tokens, in each model before the merge.
    torch.testing.assert_close(rows[-1].float(), rows[:262].float().mean(0), rtol=0.02, atol=1e-4)
    assert torch.equal(rows[262], rows[-1])


def test_tokens_without_a_row_are_left_out(tuned: dict[str, Path], tmp_path: Path) -> None:
    merge(tmp_path / "made", tuned["three"], tuned["one"], "--method", "linear", "-p", "weight=1", "--tokenizer-source", "base")
    assert "<|pad|>" not in loaded_ids(tmp_path / "made")
    assert AutoTokenizer.from_pretrained(tmp_path / "made").pad_token is None
    assert values(tmp_path / "made")[OUTPUT].shape == (259, 32)


def test_what_cannot_be_merged_by_token(tuned: dict[str, Path], tmp_path: Path) -> None:
    one, two = tuned["one"], tuned["two"]
    for name, words, error, message in (
        ("method", [one, two, "--tokenizer-source", "union"], UsageError, "are for merges by a method"),
        ("row", [one, two, "--method", "linear", "-p", "weight=1"], BadData, "vocab_size is 260"),
    ):
        with pytest.raises(error) as caught:
            merge(tmp_path / name, *words)
        assert message in str(caught.value), name
    assert caught.value.hint == "merge them by token, as --method linear --tokenizer-source union"
    bare = write(tmp_path / "bare", dataclasses.replace(LLAMA, vocab_size=260), 1, "bfloat16")
    with pytest.raises(BadData, match="bare: has no tokenizer"):
        merge(tmp_path / "x", bare, one, "--method", "linear", "-p", "weight=1", "--tokenizer-source", "base")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokenizer_source": "base", "tokenizer": {"source": "base"}}, BadConfig, "are both there"),
        ({"tokenizer": {"source": "base", "padding": 8}}, BadConfig, "is not read here"),
        ({"tokenizer": {"pad_to_multiple_of": 0}}, BadConfig, "pad_to_multiple_of is 0"),
        ({"tokenizer": {"tokens": {"a": {"source": {"kind": "mean"}}}}}, BadConfig, "is no source"),
        ({"tokenizer": {"tokens": {"a": {"source": {"kind": "model_token", "model": "m"}}}}}, BadConfig, "is no source"),
        ({"tokenizer": {"tokens": {"a": {"source": {"kind": "zero"}, "force": 1}}}}, BadConfig, "force is 1"),
        ({"tokenizer": {"tokens": {"a": {"source": "three"}}}}, BadData, "which is not merged"),
        ({"tokenizer": {"tokens": {"he": {"source": "two"}}}}, BadData, "does not have"),
        ({"base_model": "three", "tokenizer_source": "base"}, BadConfig, "linear has none"),
    ],
)
def test_what_a_file_cannot_say(
    change: dict[str, Any],
    error: type[Exception],
    message: str,
    tuned: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tuned["one"].parent)
    models = [{"model": name, "parameters": {"weight": 1}} for name in ("one", "two")]
    with pytest.raises(error, match=message):
        by_file(tmp_path, tmp_path / "x", merge_method="linear", models=models, **change)
