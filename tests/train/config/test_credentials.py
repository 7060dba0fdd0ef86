"""What is a secret in a text, and what only looks like one."""

import pytest
from click.testing import CliRunner
from running import run

from lt_shared.console import UsageError
from lt_train.cli import command
from lt_train.config import credentials

SECRETS = [
    "https://user:SECRET@host/x",
    "s3://KEY:SECRET/SECRET@bucket/x",
    "s3://:SECRET@bucket/x",
    "docker://user:SECRET@host/image",
    "docker://user:SECRET@host:5000/image:1@sha256:abc",
    "hf_SECRETabc123defgh",
    "a ghp_SECRETabc123defgh b",
]
HARMLESS = [
    "docker://ubuntu:22.04@sha256:abc",
    "docker://user@nvcr.io#nvidia/pytorch:24.07",
    "nvcr.io#nvidia/pytorch:24.07",
    "http://host:9000/a@b",
    "s3://bucket/x@y:z@w",
    "training/llama/hf_llama3_2_1b_seq8k_gpu_p5x1_pretrain.yaml",
    "hf_transformers_checkpoints",
    "/fsx/run:1@2",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_refused_and_covered(text: str) -> None:
    assert "SECRET" not in credentials.covered(text)
    assert "abc123" not in credentials.covered(text)
    with pytest.raises(UsageError, match="--load: ") as caught:
        credentials.check(text, "--load")
    assert "SECRET" not in str(caught.value)
    assert "environment" in str(caught.value.hint)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_looks_like_a_secret(text: str) -> None:
    credentials.check(text, "--load")
    assert credentials.covered(text) == text


@pytest.mark.parametrize(
    "text", ["https://SECRET@github.com/x", "--export=WANDB_API_KEY=SECRET,ALL", "https://h/x?a=b&token=SECRET"]
)
def test_what_is_only_covered(text: str) -> None:
    credentials.check(text, "--load")
    assert "SECRET" not in credentials.covered(text)


def test_nested_values() -> None:
    found = credentials.covered([{"name": "HF_TOKEN", "value": "x"}, {"name": "A", "value": "1"}, {"api_key": "x", "b": ["c"]}])
    assert found == [
        {"name": "HF_TOKEN", "value": "(not shown)"},
        {"name": "A", "value": "1"},
        {"api_key": "(not shown)", "b": ["c"]},
    ]


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("--load", "https://user:SECRET@h/x"), {}),
        (("--valid-data-path", "1", "s3://k:SECRET@b/x"), {}),
        (("0.5", "s3://k:SECRET@b/x"), {}),
        ((), {"LT_TRAIN_SAVE": "s3://k:SECRET@b/x"}),
    ],
)
def test_a_run_refuses_a_password(words: tuple[str, ...], variables: dict[str, str]) -> None:
    arguments = ["--model", "tiny", "--dry-run", *words]
    with pytest.raises(UsageError, match="holds a password") as caught:
        CliRunner(env=variables).invoke(command, arguments, auto_envvar_prefix="LT_TRAIN", catch_exceptions=False)
    assert "SECRET" not in str(caught.value)


def test_the_console_says_so() -> None:
    done = run("--model", "tiny", "--mock-data", "--load", "https://user:SECRET@h/x")
    assert done.code == 2
    assert "SECRET" not in done.err + done.out
