import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from layouts import assembled
from running import train
from situations import MODEL

from lt_shared.console import BadConfig
from lt_train.commands.preflight import command
from lt_train.preflight import check_runner

WRONG = ("--tensor-model-parallel-size", "3", "--ranks", "3", "--wandb-project", "p", "--image", "/nowhere/a.sqsh")


def test_all_findings_at_once(tmp_path: Path) -> None:
    """Data, plan, directory, job and variables of one command line, in lines and in JSON, and nothing is written."""
    file = tmp_path / "file"
    file.touch()
    arguments = ("preflight", "--model", "tiny", "--device", "cpu", "--save", str(file / "run"), *WRONG, str(tmp_path / "data"))
    variables = {"NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_SOCKET_IFNAME": "none0", "HOME": str(tmp_path), "LD_PRELOAD": ""}
    result = train(*arguments, **variables)
    assert result.code == 78, result.err
    expected = (
        *(f"error: {tmp_path / 'data'}: ", "not divisible by tensor parallel size 3", f"{file} is not a directory"),
        *("none0 leaves none", "name is deprecated", "/nowhere/a.sqsh: does not exist", "WANDB_API_KEY"),
    )
    for text in expected:
        assert any(text in line for line in result.out.splitlines()), (text, result.out)
    record = json.loads(train(*arguments, "--json", **variables).out)
    assert (record["v"], record["kind"], len(record["findings"])) == (1, "preflight", len(result.out.splitlines()))
    assert {"level", "what", "where", "remedy", "nodes"} == set(record["findings"][0])
    assert "job.image" in record["checked"]
    assert record["not_checked"]["job.trainium"] == "not on Trainium"
    assert sorted(tmp_path.iterdir()) == [file]


def test_nothing_found(tmp_path: Path) -> None:
    result = train("preflight", *MODEL, "--save", str(tmp_path / "run"))
    assert (result.code, result.out) == (0, "")
    assert "0 error(s), 0 warning(s)" in result.err


def test_options_that_make_no_plan_hide_nothing_else(tmp_path: Path) -> None:
    result = train("preflight", *MODEL, "--hidden-size", "100", "--num-attention-heads", "7", NCCL_SOCKET_IFNAME="none0")
    assert result.code == 78
    assert "not divisible by 7" in result.out
    assert "none0" in result.out


def test_every_part_of_the_options_tells_its_mistake(tmp_path: Path) -> None:
    wrong = ("--train-iters", "5", "--train-samples", "10", "--bf16", "--fp16", "--save", "")
    result = train("preflight", *MODEL, *wrong)
    assert result.code == 78
    for text in ("one length of the run", "both --bf16 and --fp16", "--save is empty"):
        assert text in result.out


def test_a_part_that_cannot_be_made_hides_no_other(tmp_path: Path) -> None:
    """The model, the batch, fp8, each dataset and the directory; and two types of the weights, beside the split."""
    file = tmp_path / "file"
    file.touch()
    sizes = ("--num-attention-heads", "5", "--tensor-model-parallel-size", "3", "--global-batch-size", "7", "--ranks", "3")
    wrong = (*sizes, "--micro-batch-size", "2", "--split", "50,20", "--fp8-format", "hybrid", "--save", str(file / "run"))
    result = train("preflight", "--model", "tiny", "--device", "cpu", *wrong, str(tmp_path / "a"), str(tmp_path / "b"))
    assert result.code == 78
    for text in ("not divisible by 5", "global batch size 7", "fp8 GEMMs of weights in float32", "a.idx: no", "b.idx: no"):
        assert text in result.out, result.out
    assert f"{file} is not a directory; name a directory" in result.out
    assert len(result.out.splitlines()) == 7
    types = ("--bf16", "--fp16", "--split", "abc", "--save", str(file / "run"))
    result = train("preflight", "--model", "tiny", "--device", "cpu", *types, str(tmp_path / "a"))
    for text in ("both --bf16 and --fp16", "'abc' is not three shares", "a.idx: no", "is not a directory"):
        assert text in result.out, result.out


@pytest.mark.parametrize(
    ("options", "sound"),
    [
        (("--train-iters", "5", "--train-samples", "10"), ("--lr-warmup-iters", "2000")),
        (("--num-attention-heads", "5"), ("--seq-length", "96", "--lr-warmup-iters", "4", "--train-iters", "9")),
        (("--num-attention-heads", "5"), ("--recompute-granularity", "full", "--recompute-num-layers", "2")),
        (("--hidden-size", "0x1"), ()),
        (("--num-attention-heads", "5"), ("--train-tokens", "100000", "--lr-warmup-samples", "10000")),
        (("--num-virtual-stages-per-pipeline-rank", "2", "--num-layers-per-virtual-pipeline-stage", "1"), ("--ranks", "8")),
    ],
)
def test_a_part_that_cannot_be_made_brings_no_other_mistake(options: tuple[str, ...], sound: tuple[str, ...]) -> None:
    """What stands in its place is right for everything that goes with it."""
    parallel = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--sequence-parallel")
    result = CliRunner().invoke(command, [*MODEL, *parallel, "--save", "run", *options, *sound])
    found = [line for line in result.stdout.splitlines() if "error" in line]
    assert len(found) == (0 if options[1] == "0x1" else 1), result.output


def test_data_that_cannot_be_read_is_not_called_made_up(tmp_path: Path) -> None:
    result = train("preflight", "--model", "tiny", "--device", "cpu", "--save", str(tmp_path), f"@{tmp_path}/c4.manifest")
    assert "c4.manifest: no such file; check the path" in result.out
    assert "data.files: the data cannot be read" in result.err


def test_packages_of_a_machine_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be there: a warning, and on the machine itself an error."""
    monkeypatch.setitem(sys.modules, "emerging_optimizers", None)
    muon = ("--optimizer", "muon", "--save", str(tmp_path))
    for where, level in (((), "error"), (("--gpu", "h100-80gb"), "warning")):
        result = CliRunner().invoke(command, [*MODEL, *muon, *where])
        assert f"{level}: options: " in result.stdout
        assert "lt-train[muon]" in result.stdout


def test_a_layout_that_does_not_fit_hides_nothing_else(tmp_path: Path) -> None:
    elsewhere = ("--gpu", "v100-16gb", "--model", "llama3.1-70b", "--bf16", "--mock-data", "--parallel", "auto")
    result = train("preflight", *elsewhere, "--load", str(tmp_path / "none"))
    assert result.code == 78
    for text in ("no layout of 8 ranks holds the model", "cannot multiply in bfloat16", "none: does not exist"):
        assert text in result.out


def test_a_cluster_elsewhere(tmp_path: Path) -> None:
    elsewhere = (
        "--gpu",
        "h100-80gb",
        "--nodes",
        "2",
        "--model",
        "llama3.1-70b",
        "--bf16",
        "--mock-data",
        "--save",
        str(tmp_path),
    )
    result = train("preflight", *elsewhere)
    assert "weights, gradients and optimizer alone" in result.out
    fits = train("preflight", *elsewhere, "--parallel", "auto", "--global-batch-size", "64")
    assert "alone" not in fits.out


def test_every_start_makes_the_cheap_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = assembled([*MODEL, "--save", str(tmp_path / "run")])
    check_runner.check_at_start(plan)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    check_runner.check_at_start(plan)
    assert "warning: NCCL_ASYNC_ERROR_HANDLING" in capsys.readouterr().err
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "none0")
    with pytest.raises(BadConfig, match="1 mistake"):
        check_runner.check_at_start(plan)


def test_a_start_that_cannot_work_ends_before_any_rank(tmp_path: Path) -> None:
    result = train(*MODEL, "--save", str(tmp_path / "run"), NCCL_SOCKET_IFNAME="none0")
    assert result.code == 78
    assert "none0 leaves none of this machine's interfaces" in result.err
    assert not (tmp_path / "run").exists()
