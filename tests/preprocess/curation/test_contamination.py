"""N-grams of evaluation texts: XXH64 equals the library, and a document goes that has 12 words of an evaluation text."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash

from lt_preprocess.curation import contamination
from lt_preprocess.curation.contamination import EvaluationTexts, ngram_hashes
from lt_preprocess.curation.words import words, words_of
from lt_preprocess.texts import Texts
from lt_shared.console import BadData, NoInput


def hashed(texts: list[str], size: int) -> tuple[list[int], list[int]]:
    hashes, counts = ngram_hashes(words(Texts.from_list([text.encode() for text in texts])), size)
    return hashes.tolist(), counts.tolist()


@pytest.mark.parametrize("size", [1, 5, 12])
def test_hashes_are_those_of_the_library(size: int) -> None:
    random.seed(size)
    texts = [" ".join("w" * random.randrange(1, 50) for _ in range(random.randrange(40))) for _ in range(50)]
    expected = [words_of(text) for text in texts]
    ngrams = [[" ".join(one[at : at + size]) for at in range(len(one) - size + 1)] for one in expected]
    hashes, counts = hashed(texts, size)
    assert counts == [len(one) for one in ngrams]
    assert hashes == [xxhash.xxh64_intdigest(ngram.encode()) for one in ngrams for ngram in one]


def lines(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


NUMBERS = "one two three four five six seven eight nine ten eleven twelve thirteen"


def removed(evaluation_texts: EvaluationTexts, texts: list[str]) -> dict[int, str]:
    removals = evaluation_texts.removals(words(Texts.from_list([text.encode() for text in texts])))
    return {document: reason for document, (kind, reason) in removals.items() if kind == "contaminated"}


def test_twelve_words_in_a_row_are_removed_and_eleven_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = lines(tmp_path / "first.jsonl", [NUMBERS, "too short to match anything"])
    second = lines(tmp_path / "second.jsonl", [NUMBERS.replace("one", "uno"), NUMBERS.replace("one", "eins") + " x"])
    evaluation_texts = EvaluationTexts([first, second])
    assert "1 of 4 evaluation texts have under 12 words" in capsys.readouterr().err
    eleven = " ".join(NUMBERS.split()[1:12])
    twelve = " ".join(NUMBERS.split()[:12])
    documents = [
        twelve,
        eleven,
        f"Before. {twelve.upper()}!!! after",
        f"uno {eleven}",
        f"{eleven} and {eleven}",
        "",
        NUMBERS.replace(" six ", " six, (six) "),
    ]
    reasons = removed(evaluation_texts, documents)
    assert reasons == {
        0: f"contaminated: 12 words of {first}: {twelve}",
        2: f"contaminated: 12 words of {first}: {twelve}",
        3: f"contaminated: 12 words of {second}: uno {eleven}",
    }


def test_many_ngrams_are_found_and_no_others(tmp_path: Path) -> None:
    random.seed(3)
    vocabulary = [f"w{chr(97 + a)}{chr(97 + b)}" for a in range(26) for b in range(26)]
    texts = [" ".join(random.choices(vocabulary, k=60)) for _ in range(300)]
    evaluation_texts = EvaluationTexts([lines(tmp_path / "all.jsonl", texts)])
    found = removed(evaluation_texts, [" ".join(text.split()[at : at + 12]) for text in texts for at in (0, 48)])
    assert len(found) == 600
    assert not removed(evaluation_texts, [" ".join(random.choices(vocabulary, k=60)) for _ in range(300)])


def test_a_hash_of_zero_is_found() -> None:
    table, files = np.zeros(8, np.uint64), np.zeros(8, np.int32)
    contamination._fill(np.array([0, 1 << 63, 8], np.uint64), np.array([5, 6, 7], np.int32), table, files)
    assert sorted(zip(table.tolist(), files.tolist(), strict=True))[-3:] == [(1, 5), (8, 7), (1 << 63, 6)]


def test_files_without_ngrams_and_bad_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no evaluation text has 12 words"):
        EvaluationTexts([lines(tmp_path / "short.jsonl", ["one two"])])
    (tmp_path / "bad.jsonl").write_text('{"question": "x"}\n')
    with pytest.raises(BadData, match=r"--decontaminate: .*bad.jsonl, line 1.*no key 'text'"):
        EvaluationTexts([str(tmp_path / "bad.jsonl")])
