"""Files that are no configuration, or one that takes too long to read: a refusal that names the line, in a short time."""

import time
from pathlib import Path

import pytest
from running import train

from lt_shared.console import BadData
from lt_train.importers import positions, source

NEMO = "model: {num_layers: 4, hidden_size: 256, num_attention_heads: 4, encoder_seq_length: 512}\ntrainer: {max_steps: 10}\n"
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 100\n'
SCRIPT = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64"
SECONDS = 10
LETTERS = "bcdefghijkl"


def lists_of_aliases() -> str:
    return "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("a" + LETTERS, LETTERS, strict=False)
    )


def references() -> str:
    lines = [f"a{number + 1}: '{f'${{a{number}}}' * 10}'" for number in range(12)]
    return "\n".join(["a0: xxxxxxxxxx", *lines])


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.yaml", lists_of_aliases() + NEMO, "more than 100,000 values, with aliases written out in line "),
        ("a.yaml", f"a: &a [*a]\n{NEMO}", "in line 1"),
        ("a.yaml", NEMO + references(), "a4: its references write out more than 10,000 characters"),
        ("a.yaml", NEMO.replace("10", "9" * 5000), "line 2: a number of more than 1,000 digits"),
        ("a.toml", TITAN.replace("100", "9" * 5000), "line 5: a number of more than 1,000 digits"),
        ("a.toml", TITAN.replace("100", "9_" * 5000 + "9"), "line 5: a number of more than 1,000 digits"),
        ("a.toml", f"{'.'.join('a' * 50_000)} = 1\n", "line 1: more than 1,000 dots"),
        ("a.toml", f"a = {'[' * 50_000}{']' * 50_000}\n", "nested too deeply"),
        ("a.yaml", f"{'{a: ' * 5_000}1{'}' * 5_000}\n", "nested too deeply"),
        ("a.yaml", "# a comment\n" * 100_000 + NEMO, "larger than 1,000,000 bytes"),
        ("a.sh", "# a comment\n" * 100_000 + SCRIPT, "larger than 1,000,000 bytes"),
        ("a.sh", f"while true; do X=1; done\n{SCRIPT}\n", "a loop that is too long to follow"),
        ("a.sh", f"f() {{ f; f; }}\nf\n{SCRIPT}\n", "nested too deeply"),
        ("a.yaml", 'a: !!python/object/apply:os.system ["true"]\n', "line 1"),
        ("a.yaml", "- a\n- b\n", "it has no keys"),
        ("a.yaml", "\0", "a character that it does not have"),
    ],
)
def test_a_refusal_in_a_short_time(tmp_path: Path, name: str, text: str, error: str) -> None:
    (tmp_path / name).write_text(text)
    begin = time.monotonic()
    with pytest.raises(BadData) as refusal:
        source.translate_file(str(tmp_path / name))
    assert error in str(refusal.value)
    assert time.monotonic() - begin < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        "X=a\n" + "X=$X$X\n" * 60 + f"{SCRIPT} --seed $X\n",
        f"for i in {{1..1000000000}}; do X=$X$i; done\n{SCRIPT} --seed $X\n",
    ],
)
def test_a_value_that_grows_without_bound_is_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.sh").write_text(text)
    begin = time.monotonic()
    assert source.translate_file(str(tmp_path / "a.sh")).unknown_variables
    assert time.monotonic() - begin < SECONDS


@pytest.mark.parametrize(
    "expression", ["${divide_floor:1,0}", "${multiply:" + ",".join(["9" * 900] * 99) + "}"], ids=["zero", "long"]
)
def test_an_expression_without_a_value_stays(tmp_path: Path, expression: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{NEMO}more: {expression}\n")
    assert expression[:9] in str(
        next(entry for entry in source.translate_file(str(tmp_path / "a.yaml")).dropped if entry.key == "more")
    )


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("pyproject.toml", '[build-system]\nrequires = ["x"]\n', "no table knows build-system.requires (line 2)"),
        ("compose.yaml", "services:\n  web:\n    image: nginx\n", "no table knows services.web.image (line 3)"),
        ("a.toml", f"{TITAN}[training.quantum]\nflux = 3\n", "another run would result, without training.quantum.flux (line 7)"),
        ("a.yaml", f"{NEMO}section:\n  # new\n  key: 7\n", "another run would result, without section.key (line 5)"),
        ("a.sh", f"A=1\n{SCRIPT} \\\n  --never-heard 3\n", "another run would result, without never_heard (line 3)"),
        ("a.yaml", NEMO + "".join(f"k{number}: 1\n" for number in range(20)), "k0 (line 3), k1 (line 4)"),
        ("a.yaml", NEMO + "".join(f"k{number}: 1\n" for number in range(20)), " and 8 more\n"),
    ],
)
def test_a_file_of_another_program_or_version_is_refused_with_its_lines(tmp_path: Path, name: str, text: str, error: str) -> None:
    (tmp_path / name).write_text(text)
    done = train("import", str(tmp_path / name))
    assert (done.code, done.out) == (65, "")
    assert error in done.err


def test_the_error_without_a_model_names_unknown_keys_alone(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[model]\nname = "sven"\n[training]\ndtype = "bfloat16"\nflux = 3\n')
    refusal = train("import", str(tmp_path / "a.toml")).err
    assert "no model: neither its name nor its layers are known; no table knows training.flux (line 5)\n" in refusal


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", f"{NEMO}exp_manager: {{wandb_logger_kwargs: {{api_key: %s}}}}\nhf_token: %s\n"),
        ("a.sh", f"{SCRIPT} --wandb-key %s --never-heard %s\n"),
    ],
)
def test_no_secret_is_shown(tmp_path: Path, name: str, text: str) -> None:
    secret = "hf_" + "AbCdEfGh12" * 3
    (tmp_path / name).write_text(text.replace("%s", secret))
    for words in ((), ("--json", "--partial", "-v"), ("--partial",)):
        done = train("import", *words, str(tmp_path / name))
        assert secret not in done.out + done.err


def test_positions_of_keys() -> None:
    toml = '[a."b"]\nc.d = 1\ne = {f = 2}\n[[g]]\nh = 3\n'
    found = [positions.line_of(toml, "x.toml", key) for key in ("a.b.c.d", "a.b.e.f", "g.h", "y")]
    assert found == [2, 3, 5, None]
    yaml = "a:\n  b: 1\n  c: [1]\nd: &d {e: 2}\nf: *d\n"
    assert [positions.line_of(yaml, "x.yaml", key) for key in ("a.b", "a.c", "d.e", "f.e", "g")] == [2, 3, 4, 4, None]
    assert positions.line_of("recipes:\n  model: {x: 1}\n", "x.yaml", "model.x") == 2
    assert positions.line_of("x\n--a-b 1 --a-b-c 2\n", "x.sh", "a_b_c") == 2
