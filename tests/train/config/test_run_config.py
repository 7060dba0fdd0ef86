"""What cannot run is refused before any rank starts: one line, the right exit code, nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import synthetic
from layouts import assembled
from running import SMALL, train

from lt_shared.contracts.manifest import Dataset
from lt_shared.data.sample_order import run_order
from lt_shared.data.sample_order.split import split_shares
from lt_train.config.checks import problems
from lt_train.config.run_config import RunConfig
from lt_train.planner.resolve import resolve_run_config

BAD_CONFIGURATIONS = {
    "heads by tensor parallel": (
        ("--tensor-model-parallel-size", "3"),
        "attention heads 4 not divisible by tensor parallel",
    ),
    "groups by tensor parallel": (
        (*("--num-attention-heads", "12", "--num-query-groups", "6", "--hidden-size", "96"), "--tensor-model-parallel-size", "4"),
        "query groups 6 neither a multiple nor a divisor of tensor parallel size 4",
    ),
    "groups by Muon": (
        ("--tensor-model-parallel-size", "4", "--ranks", "4", "--optimizer", "muon"),
        "Muon needs whole query groups on a rank, tensor parallel size 4 splits 2",
    ),
    "layers by pipeline": (("--pipeline-model-parallel-size", "3"), "layers 2 not divisible by pipeline parallel size 3"),
    "ranks by model parallel": (("--ranks", "3", "--tensor-model-parallel-size", "2"), "3 ranks do not divide"),
    "batch by ranks": (("--ranks", "3"), "global batch size 8 is not a multiple"),
    "sequence length": (("--seq-length", "4096"), "exceeds the model's 1024 positions"),
    "sequence parallel alone": (("--sequence-parallel",), "tensor parallel size above 1"),
    "heads by width": (("--num-attention-heads", "7", "--num-query-groups", "7"), "not divisible by 7 attention heads"),
    "split without training": (("--split", "0,1,0"), "leaves no training data"),
    "split without validation": (("--split", "1,0,0"), "leaves no validation data"),
    "split of words": (("--split", "most,some"), "not three shares"),
    "warm-up": (("--train-iters", "5", "--lr-warmup-iters", "5"), "warm-up over 40 samples"),
    "learning rates": (("--lr", "1e-4", "--min-lr", "1e-3"), "minimum learning rate"),
    "mixed families": (("--position-embedding-type", "learned_absolute"), "does not go with the llama family"),
    "rotary options of a model without": (
        ("--model", "tiny-gpt3", "--use-rope-scaling"),
        "--use-rope-scaling for a model with learned positions",
    ),
    "one expert": (("--model", "tiny-mixtral", "--moe-router-topk", "1"), "the router would not learn"),
    "exit without a way on": (("--exit-interval", "2", "--no-save-optim"), "the run could not resume"),
    "long ramp": (("--rampup-batch-size", "1", "1", "1000000000000"), "grows over 1,000,000,000,000 samples"),
    "small vocabulary": (("--vocab-size", "1000"), "vocabulary of 2048, the model's has 1000"),
}


@pytest.mark.parametrize("case", BAD_CONFIGURATIONS)
def test_refused_configurations(case: str, tmp_path: Path, dataset: Dataset) -> None:
    options, message = BAD_CONFIGURATIONS[case]
    result = train(*SMALL, *options, "--save", str(tmp_path / "run"), dataset.prefix)
    assert (result.code, result.out) == (78, "")
    error, *hint = result.err.splitlines()
    assert error.startswith("lt-train: error: ")
    assert message in error
    assert len(hint) <= 1
    assert not (tmp_path / "run").exists()


def test_a_file_of_an_earlier_version_that_asks_for_transformer_engine_runs_and_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('transformer-impl = "te"\ncpu-offloading-num-layers = 0\n')
    for words in ((), ("--parallel", "auto", "--ranks", "2")):
        result = train(*SMALL, "--mock-data", "--config", str(tmp_path / "run.toml"), "--dry-run", *words)
        assert (result.code, result.err.count("--transformer-impl te has no effect")) == (0, 1), result.err


def test_all_problems_of_a_plan_are_found_at_once(dataset: Dataset) -> None:
    wrong = (
        *("--tensor-model-parallel-size", "3", "--ranks", "3", "--seq-length", "4096", "--min-lr", "1"),
        *("--split", "1,0,0", "--keep-every", "3"),
    )
    found = [str(problem) for problem in problems(assembled((*SMALL, *wrong, dataset.prefix)))]
    expected = (
        *("attention heads 4 not divisible", "query groups 2 neither", "feed-forward size 128 not", "exceeds the model's 1024"),
        *("minimum learning rate", "leaves no validation data", "--keep-every says"),
    )
    for message in expected:
        assert any(message in problem for problem in found), message


def test_too_few_ranks_do_not_hide_other_problems() -> None:
    few = (*SMALL, "--ranks", "1", "--tensor-model-parallel-size", "2", "--min-lr", "1", "--mock-data")
    found = [str(problem) for problem in problems(assembled(few))]
    assert [problem[:12] for problem in found] == ["1 ranks do n", "minimum lear"]


def test_refused_usage(tmp_path: Path, dataset: Dataset) -> None:
    assert train("--model", "gpt5", dataset.prefix).code == 2
    assert train("--num-layers", "2", dataset.prefix).code == 2
    assert train().code == 2
    assert train(*SMALL, "--micro-batch-size", "0", dataset.prefix).code == 2
    assert train(*SMALL, "--adam-beta1", "2", dataset.prefix).code == 2
    for option, value in (("--lr", "inf"), ("--clip-grad", "nan"), ("--seed", str(2**32)), ("--save", "")):
        assert train(*SMALL, option, value, dataset.prefix).code == 2


def test_missing_and_broken_datasets(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    def outcome(*data: str) -> tuple[int, str]:
        result = train(*SMALL, "--save", str(tmp_path / "run"), *data)
        assert result.out == ""
        assert not (tmp_path / "run").exists()
        return result.code, result.err

    assert outcome(str(tmp_path / "nothing"))[0] == 66
    assert outcome(f"@{tmp_path / 'nothing.manifest'}")[0] == 66
    prefix = write_dataset(tmp_path / "data", documents=20).prefix
    tokens = Path(f"{prefix}.bin").read_bytes()
    Path(f"{prefix}.bin").write_bytes(tokens[:-2])
    code, message = outcome(prefix)
    assert code == 65
    assert f"{prefix}.bin" in message
    Path(f"{prefix}.bin").write_bytes(tokens)
    Path(f"{prefix}.idx").unlink()
    code, message = outcome(prefix)
    assert code == 66
    assert "was not finished" in message


def test_tokens_beyond_the_vocabulary(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    prefix = write_dataset(tmp_path / "plain", documents=100).prefix
    Path(f"{prefix}.json").unlink()
    result = train(*SMALL, "--vocab-size", "500", prefix)
    assert (result.code, "holds token 2047" in result.err) == (78, True)


def test_too_few_documents_for_a_split(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    prefix = write_dataset(tmp_path / "few", documents=9).prefix
    result = train(*SMALL, prefix)
    assert result.code == 65
    assert "none of them for validation at split 99,1,0" in result.err
    alone = ("--split", "1,0,0", "--eval-iters", "0")
    for split in (("--split", "8,2,0"), alone):
        works = train(*SMALL, "--train-iters", "1", *split, "--save", str(tmp_path / split[1]), prefix)
        assert works.code == 0, works.err


def test_data_of_two_tokenizers_is_refused(tmp_path: Path, dataset: Dataset, write_dataset: Callable[..., Dataset]) -> None:
    other = write_dataset(tmp_path / "other", documents=100, sha256="0" * 64)
    result = train(*SMALL, dataset.prefix, other.prefix)
    assert result.code == 78
    assert dataset.prefix in result.err
    assert other.prefix in result.err


def test_checkpoint_of_another_tokenizer_or_model_is_refused(
    tmp_path: Path, dataset: Dataset, write_dataset: Callable[..., Dataset]
) -> None:
    save = ("--save", str(tmp_path / "run"))
    first = train(*SMALL, "--train-iters", "1", *save, dataset.prefix)
    assert first.code == 0, first.err
    other = write_dataset(tmp_path / "other", documents=100, sha256="0" * 64)
    tokenizer = train(*SMALL, "--train-iters", "2", *save, other.prefix)
    assert (tokenizer.code, "different tokenizers" in tokenizer.err) == (78, True)
    model = train(*SMALL, "--train-iters", "2", "--ffn-hidden-size", "192", *save, dataset.prefix)
    assert (model.code, "ffn_hidden_size 128 there, 192 here" in model.err) == (78, True)


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, dataset: Dataset) -> None:
    result = train(*SMALL, "--dry-run", "--save", str(tmp_path / "run"), "0.7", dataset.prefix)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert record["architecture"]["vocab_size"] == 2048
    assert record["data"]["datasets"][0]["weight"] == 0.7
    assert record["parallelism"]["world_size"] == 1
    assert not (tmp_path / "run").exists()


def test_plan_travels_to_the_ranks_unchanged(dataset: Dataset) -> None:
    from lt_train.cli import command as click_command

    context = click_command.make_context("lt-train", [*SMALL, "--model", "llama3.1-8b", "--seq-length", "64", dataset.prefix])
    options = {key: value for key, value in context.params.items() if key not in ("data", "dry_run")}
    plan = resolve_run_config(options, (dataset,))
    assert RunConfig.from_json(plan.to_json()) == plan


def test_split_shares() -> None:
    assert split_shares("969,30,1") == pytest.approx((0.969, 0.03, 0.001))
    assert split_shares("1") == (1.0, 0.0, 0.0)


def test_document_flags_need_documents_that_end(tmp_path: Path, write_dataset: Callable[..., Dataset]) -> None:
    endless = write_dataset(tmp_path / "endless", documents=100)
    tokens = np.fromfile(f"{endless.prefix}.bin", np.uint16)
    tokens[tokens == endless.eod] = 0
    tokens.tofile(f"{endless.prefix}.bin")
    result = train(*SMALL, "--reset-attention-mask", "--dry-run", endless.prefix)
    assert (result.code, "do not end with token" in result.err) == (78, True)


def test_what_a_checkpoint_cannot_give_is_refused(tmp_path: Path, dataset: Dataset) -> None:
    first = ("--train-iters", "2", "--save", str(tmp_path / "run"))
    assert train(*SMALL, *first, dataset.prefix).code == 0
    renamed = shutil.copytree(tmp_path / "run/iter_0000002", tmp_path / "copy/mine")
    cases = {
        "leaves none": ("--train-iters", "2", "--load", str(tmp_path / "run"), "--save", str(tmp_path / "next")),
        "name the directory iter_0000002": ("--train-iters", "4", "--load", str(renamed)),
        f"move it away: {tmp_path / 'run/iter_0000002'}": ("--train-iters", "4", "--save", str(tmp_path / "run")),
    }
    shutil.copytree(tmp_path / "run/iter_0000002", tmp_path / "run/iter_0000003")
    for message, options in cases.items():
        result = train(*SMALL, *options, dataset.prefix)
        assert (result.code, message in result.err) == (78, True), result.err


def test_a_run_in_samples_trains_those_that_are_left_with_any_batch_size(tmp_path: Path, dataset: Dataset) -> None:
    """40 of 80 samples in steps of 4, 16 in steps of 8, 24 in steps of 2."""
    run = ("--save", str(tmp_path / "run"), "--train-samples", "80", "--eval-iters", "0", dataset.prefix)
    counts = []
    for size, more, code in ((4, ("--exit-interval", "10"), 75), (8, ("--exit-interval", "3"), 75), (2, (), 0), (8, (), 0)):
        result = train(*SMALL, "--global-batch-size", str(size), *more, *run)
        assert result.code == code, result.err
        records = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
        steps = [record for record in records if record["kind"] == "step"]
        counts.append((steps[-1]["step"], steps[-1]["consumed_samples"]))
    assert counts == [(10, 40), (12, 56), (24, 80), (24, 80)]
    assert "up to date" in result.err


def test_a_longer_run_says_where_further_epochs_begin(tmp_path: Path, dataset: Dataset) -> None:
    """More samples of the same epoch are no news, and a shorter run leaves the order as it was."""
    run = (*SMALL, "--save", str(tmp_path / "run"), "--eval-iters", "0", dataset.prefix)
    assert train(*run, "--train-iters", "2").code == 0
    same = train(*run, "--train-iters", "3", "--exit-interval", "1")
    assert "epochs" not in same.err
    longer = train(*run, "--train-iters", "400", "--exit-interval", "1")
    assert "the run was 24 samples long and is 3200: the samples of the shorter run keep their order" in longer.err, longer.err
    shorter = train(*run, "--train-iters", "5")
    assert (shorter.code, "epochs" in shorter.err) == (0, False), shorter.err
    lengths = [(attempt.earlier_samples, attempt.samples) for attempt in run_order.read(tmp_path / "run")]
    assert lengths == [((), 16), ((), 24), ((24,), 3200), ((24,), 3200)]


def test_another_batch_size_continues_with_a_warning(tmp_path: Path, dataset: Dataset) -> None:
    save = ("--save", str(tmp_path / "run"), "--split", "1,0,0", "--eval-iters", "0")
    # 960 samples are about an epoch of this data: what five steps of 16 take is long consumed.
    whole = train(*SMALL, "--train-iters", "3", *save, "--global-batch-size", "320", "--micro-batch-size", "16", dataset.prefix)
    assert whole.code == 0, whole.err
    smaller = train(*SMALL, "--train-iters", "5", *save, "--global-batch-size", "16", "--micro-batch-size", "16", dataset.prefix)
    assert smaller.code == 0, smaller.err
    assert "the batch size is another than before" in smaller.err


def test_a_run_that_continues_with_other_updates_tells_which(tmp_path: Path, dataset: Dataset) -> None:
    """A longer run stretches its schedule, too, if nothing says how long the decay is."""
    run = (
        *SMALL,
        "--save",
        str(tmp_path / "run"),
        "--split",
        "1,0,0",
        "--eval-iters",
        "0",
        "--lr-decay-iters",
        "8",
        dataset.prefix,
    )
    assert train(*run, "--train-iters", "2").code == 0
    same = train(*run, "--train-iters", "3")
    assert "update the weights in another way" not in same.err, same.err
    changed = ("--lr", "1e-3", "--adam-beta2", "0.99", "--hidden-dropout", "0.1", "--bf16", "--lr-decay-style", "linear")
    changed += ("--eod-mask-loss", "--reset-position-ids")
    other = train(*run, "--train-iters", "4", *changed)
    assert other.code == 0, other.err
    for change in (
        "lr was 0.0003 and is 0.001",
        "min-lr was 3e-05 and is 0.0001",
        "lr-decay-style was cosine and is linear",
        "adam-beta2 was 0.95 and is 0.99",
        "hidden-dropout was 0 and is 0.1",
        "the precision was fp32 and is bf16",
        "eod-mask-loss was False and is True",
        "reset-position-ids was False and is True",
    ):
        assert change in other.err, other.err
    assert "the steps that are left update the weights in another way than those before" in other.err
    stretched = train(*run, "--train-iters", "5", *changed, "--lr-decay-iters", "16")
    assert "lr-decay-samples was 64 and is 128" in stretched.err, stretched.err
    assert "lr was" not in stretched.err


def test_ranks_compare_the_settings_of_the_router() -> None:
    plain, other = (
        synthetic.plan("--mock-data", "--num-experts", "4", *options).digests()
        for options in ((), ("--moe-router-load-balancing-type", "seq_aux_loss"))
    )
    assert {part for part in plain if plain[part] != other[part]} == {"routing"}
