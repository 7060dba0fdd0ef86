"""A command on finished datasets replaces an output of the same documents, and refuses to replace others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.datasets import merge, packing, replacement, shuffle, split
from lt_shared.console import CannotCreate
from lt_shared.contracts.manifest import Dataset

Build = Callable[..., Dataset]
COMMANDS = ("merge", "shuffle", "split", "pack")


@pytest.fixture
def make_corpus(tmp_path: Path, build: Build, demo_tokenizer: Path) -> Callable[..., str]:
    """Tokenize forty documents that begin with `name`; returns the prefix of the dataset."""

    def make(name: str, tokenizer: Path = demo_tokenizer, append_eod: bool = True) -> str:
        lines = (json.dumps({"text": f"{name} says {number} words"}) + "\n" for number in range(40))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
        return build([tmp_path / f"{name}.jsonl"], tokenizer, tmp_path / name, append_eod=append_eod).prefix

    return make


def plan_of(command: str, *sources: str, option: int = 0) -> Any:
    output = str(Path(sources[0]).with_name("out"))
    if command == "merge":
        return merge.plan(sources, output)
    if command == "shuffle":
        return shuffle.plan(sources[0], output, option)
    if command == "split":
        return split.plan(sources[0], output, "1,1", None, option)
    return packing.plan(sources[0], output, 64 + option)


def check(plan: Any) -> None:
    if isinstance(plan, split.Plan):
        for result, derivation in zip(plan.results, plan.derivations, strict=True):
            replacement.check_derived(result, derivation, plan.files)
    else:
        replacement.check_derived(plan.result, plan.derivation, plan.files)


def run(command: str, plan: Any) -> None:
    {"merge": merge, "shuffle": shuffle, "split": split, "pack": packing}[command].build(plan)  # type: ignore[attr-defined]


def output_of(command: str) -> str:
    return "out_valid" if command == "split" else "out"


def copy(source: str, name: str) -> None:
    for end in (".bin", ".idx", ".json"):
        shutil.copy(f"{source}{end}", Path(source).with_name(f"{name}{end}"))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_of_another_corpus(command: str, make_corpus: Callable[..., str]) -> None:
    first, second = make_corpus("a"), make_corpus("b")
    check(plan_of(command, first))
    run(command, plan_of(command, first))
    check(plan_of(command, first))
    check(plan_of(command, first, option=1))
    with pytest.raises(CannotCreate, match=r"holds the documents of .*/a_text_document, which this command does not read"):
        check(plan_of(command, second))
    # The same datasets under another name, and tokenized again.
    moved = Path(first).with_name("moved")
    for end in (".bin", ".idx", ".json"):
        Path(f"{first}{end}").rename(f"{moved}{end}")
    check(plan_of(command, str(moved)))
    check(plan_of(command, make_corpus("a")))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_was_tokenized(command: str, make_corpus: Callable[..., str]) -> None:
    first, second = make_corpus("a"), make_corpus("b")
    copy(second, output_of(command))
    with pytest.raises(CannotCreate, match=r"holds the documents of .*/b.jsonl"):
        check(plan_of(command, first))
    copy(first, output_of(command))
    check(plan_of(command, first))
    Path(first).with_name(f"{output_of(command)}.json").unlink()
    with pytest.raises(CannotCreate, match="holds documents that another tool wrote"):
        check(plan_of(command, first))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_of_another_tokenizer(command: str, make_corpus: Callable[..., str], gpt2_vocabulary: Path) -> None:
    run(command, plan_of(command, make_corpus("a")))
    with pytest.raises(CannotCreate, match="was made with another tokenizer, tokenizer"):
        check(plan_of(command, make_corpus("a", gpt2_vocabulary)))


def test_a_merge_of_more_parts_replaces_one_of_fewer(make_corpus: Callable[..., str]) -> None:
    first, second, third = (make_corpus(name) for name in "abc")
    run("merge", plan_of("merge", first, second))
    check(plan_of("merge", first, second, third))
    with pytest.raises(CannotCreate, match=r"holds the documents of .*/a_text_document and 1 more datasets"):
        check(plan_of("merge", third))
