"""Where the data comes from: DATA, Megatron's lists, files, mock data; and what is refused before anything starts."""

import json
from pathlib import Path

import pytest
import synthetic

from lt_shared.console import BadConfig, BadData, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order.split import split_ranges
from lt_train.config.options import options_from_toml
from lt_train.config.settings.data import Data, blend_words, changes_of_order, check_datasets, spread


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    return synthetic.write(tmp_path / "a", [9] * 20).prefix, synthetic.write(tmp_path / "b", [9] * 20).prefix


def data(*arguments: str) -> Data:
    return synthetic.plan("--seq-length", "16", *arguments).data


def weights(datasets: tuple[Dataset, ...]) -> list[tuple[str, float]]:
    return [(dataset.prefix, dataset.weight) for dataset in datasets]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            ["--data-path", "1", "a", "2", "b", "--bf16"],
            ["--data-path=1", "--data-path=a", "--data-path=2", "--data-path=b", "--bf16"],
        ),
        (["--data-path=a", "b", "--lr", "3"], ["--data-path=a", "--data-path=b", "--lr", "3"]),
        (["--valid-data-path", "-", "--data-path", "@c"], ["--valid-data-path=-", "--data-path=@c"]),
        (["a", "--seed", "3", "b"], ["a", "--seed", "3", "b"]),
        (["--data-path", "a", "--", "b"], ["--data-path=a", "--", "b"]),
        (["--data-path"], []),
    ],
)
def test_lists_end_at_the_next_option(given: list[str], expected: list[str]) -> None:
    assert spread(given) == expected


def test_a_blend_however_it_is_given(two: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two
    words = ["2", first, "0.5", second]
    expected = [(first, 2.0), (second, 0.5)]
    listed = tmp_path / "blend"
    listed.write_text(f"2 {first}\n0.5 {second}\n")
    config = tmp_path / "run.toml"
    config.write_text(f"data-path = {json.dumps(words)}\n")
    lines = [manifest.record_of(Dataset(first, weight=2.0)), manifest.record_of(Dataset(second, weight=0.5))]
    piped = tmp_path / "piped"
    piped.write_text("\n".join(map(json.dumps, [*lines, {"v": 1, "kind": "end", "count": 2}])))
    for arguments in (words, ["--data-path", *words], [f"@{listed}"], [f"@{piped}"], ["--config", str(config)]):
        assert weights(data(*arguments).datasets) == expected
    monkeypatch.setenv("LT_TRAIN_DATA_PATH", " ".join(words))
    assert blend_words(data("--data-path", *words).datasets) == words


def test_parts_of_their_own(two: tuple[str, str]) -> None:
    first, second = two
    found = data("--train-data-path", first, "--valid-data-path", "1", second, "3", first)
    assert (weights(found.datasets), weights(found.validation_datasets)) == ([(first, 1.0)], [(second, 1.0), (first, 3.0)])
    assert (found.split, found.test_datasets) == (None, ())
    beside = data(first, "--test-data-path", second, "--eval-iters", "0")
    assert (weights(beside.datasets), weights(beside.test_datasets), beside.split) == ([(first, 1.0)], [(second, 1.0)], None)


def test_refused_combinations(two: tuple[str, str]) -> None:
    first, second = two
    for arguments, message in (
        ((), "no DATA"),
        (("--data-path", first, "--train-data-path", second), "--data-path and --train-data-path"),
        (("--mock-data", first), "--mock-data and other data"),
        (("--mock-data", "--valid-data-path", first), "--mock-data and other data"),
        (("--train-data-path", first, "--split", "9,1,0"), "--split, but"),
    ):
        with pytest.raises(UsageError, match=message):
            data(*arguments)
    for arguments, message in (
        (("--train-data-path", first), "no validation data"),
        (("--reset-attention-mask", first), "which token ends them"),
        (("memory://bucket/web", "--valid-data-path", first), "memory://bucket/web: nowhere to keep what is read"),
    ):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(BadConfig, match=message):
            patch.setattr(manifest, "describe", Dataset)
            data(*arguments)
    with pytest.raises(NoInput):
        data("@/nothing/here")


def test_a_config_file_takes_no_tables(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[data-path]\na = 1\n")
    with pytest.raises(BadConfig, match="expected a list of values"):
        options_from_toml(str(config), {"data_path": "data_path"}, {"data_path"})
    config.write_text('data-path = "a"\nlr = 3.0\n')
    names = {"data_path": "data_path", "lr": "lr"}
    assert options_from_toml(str(config), names, {"data_path"}) == {"data_path": ["a"], "lr": "3.0"}


def test_what_changes_the_order_of_the_data() -> None:
    there = {"seed": 1, "seq_length": 16, "split": "9,1,0", "data_path": ["1", "a", "2", "b"], "lr": 1.0}
    assert changes_of_order(there, there | {"lr": 2.0, "data_path": ["1", "moved/a", "2", "b"]}) == []
    assert changes_of_order({"lr": 1.0}, there) == []
    swapped = [there | {"data_path": words} for words in (["1", "a", "1", "b"], ["1", "b", "1", "a"])]
    assert changes_of_order(*swapped) == ["the data was a b and is b a"]
    assert changes_of_order(there, there | {"seed": 2}) == ["seed was 1 and is 2"]
    assert len(changes_of_order(there, there | {"split": None, "data_path": None, "train_data_path": ["1", "a", "3", "b"]})) == 2


def test_split_ranges() -> None:
    assert split_ranges("99,1,0", 400) == [range(396), range(396, 400), range(400, 400)]
    assert split_ranges("969, 30, 1", 1000) == [range(969), range(969, 999), range(999, 1000)]
    assert split_ranges("1", 7)[0] == range(7)


def test_each_needed_part_has_documents(tmp_path: Path) -> None:
    few = synthetic.write(tmp_path / "few", [9] * 9)
    for split, part in (("1,99,0", "training"), ("99,1,0", "validation"), ("8,1,0.01", "test")):
        plan = synthetic.plan("--seq-length", "16", "--split", split, datasets=(few,))
        with pytest.raises(BadData, match=f"9 documents, none of them for {part}"):
            check_datasets(plan.data, synthetic.VOCABULARY)


def test_documents_of_a_blend_end_alike(tmp_path: Path) -> None:
    last_token = 80
    ends = (("a", last_token), ("b", 98))
    first, second = (Dataset(synthetic.write(tmp_path / name, [9] * 9).prefix, eod=eod) for name, eod in ends)
    plan = synthetic.plan("--seq-length", "16", "--split", "1,1,0", "--eod-mask-loss", datasets=(first, second))
    with pytest.raises(BadConfig, match=f"documents end with token 98, others with {last_token}"):
        check_datasets(plan.data, synthetic.VOCABULARY)
