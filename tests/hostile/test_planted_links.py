"""Links that a stranger has made to files that he cannot read: whoever can does not read them for him."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nursery
import pytest
from convert_models import write_model
from stranger import STRANGER_UID, Stranger

from lt_shared.console import BadData, NoInput
from lt_shared.files import storage

SECRET = "root only 4711"
TOKENIZER = Path(__file__).parents[1] / "demo/tokenizer"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def given_to(stranger: Stranger, source: Path, name: str) -> Path:
    place = shutil.copytree(source, stranger.shared / name)
    for path in (place, *place.rglob("*")):
        os.chown(path, STRANGER_UID, STRANGER_UID)
    return place


def run(tool: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([nursery.light_python(), "-m", f"lt_{tool}", *map(str, words)], capture_output=True, text=True)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json", "model.safetensors"])
def test_a_model_with_a_link(name: str, secret: Path, stranger: Stranger, tmp_path: Path) -> None:
    model = given_to(stranger, write_model(tmp_path / "model", tokenizer=True), "model")
    stranger.run(f"rm -f model/{name}; ln -s {secret} model/{name}")
    result = run("convert", model, "--to", "megatron-dist", "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert f"model/{name}: is a link that another user (uid {STRANGER_UID}) has made to what is not his" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "merges.txt"])
def test_a_tokenizer_with_a_link(name: str, secret: Path, stranger: Stranger, tmp_path: Path) -> None:
    tokenizer = given_to(stranger, TOKENIZER, "tokenizer")
    stranger.run(f"rm -f tokenizer/{name}; ln -s {secret} tokenizer/{name}")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    result = run("preprocess", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert "is a link that another user" in result.stderr


def test_an_input_that_is_a_link(secret: Path, stranger: Stranger, tmp_path: Path) -> None:
    stranger.run(f"ln -s {secret} a.jsonl")
    result = run("preprocess", f"{stranger.shared}/*.jsonl", "--tokenizer", TOKENIZER, "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert "a.jsonl: is a link that another user" in result.stderr


def test_links_among_his_own_files_are_followed(stranger: Stranger, tmp_path: Path) -> None:
    """As in the Hub's cache, which others may read."""
    given_to(stranger, write_model(tmp_path / "model", tokenizer=True), "blobs")
    stranger.run('mkdir model; for path in blobs/*; do ln -s "../$path" model/; done')
    result = run("convert", stranger.shared / "model", "--to", "torchtitan", "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr


def test_a_cache_that_several_users_share(secret: Path, stranger: Stranger, tmp_path: Path) -> None:
    """His links to his own files are followed; one to another's file is an error, and no document is left out without one."""
    stranger.run(
        'mkdir -p h/blobs h/snapshots/r; echo \'{"text": "his"}\' > h/blobs/1; ln -s ../../blobs/1 h/snapshots/r/1.jsonl'
    )
    arguments = [f"{stranger.shared}/h/snapshots/r", "--tokenizer", TOKENIZER, "-o", tmp_path / "out"]
    result = run("preprocess", *arguments)
    assert result.returncode == 0, result.stderr
    assert '"documents":1' in result.stdout
    stranger.run(f"ln -s {secret} h/snapshots/r/2.jsonl")
    result = run("preprocess", *arguments, "--force")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert "2.jsonl: is a link that another user" in result.stderr


def test_a_tokenizer_beside_anothers_checkpoint(stranger: Stranger, tmp_path: Path) -> None:
    converted = tmp_path / "made"
    assert run("convert", write_model(tmp_path / "model"), "--to", "megatron-dist", "-o", converted).returncode == 0
    shutil.copytree(converted / "release", stranger.shared / "release")
    given_to(stranger, TOKENIZER, "tokenizer")
    result = run("convert", stranger.shared / "release", "--to", "hf", "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert f"tokenizer: belongs to another user (uid {STRANGER_UID}), who has not made" in result.stderr


def test_a_description_beside_anothers_tokenizer(stranger: Stranger, tmp_path: Path) -> None:
    """In a directory of tokenizer files that everyone may write to; their hash does not cover it."""
    converted = stranger.shared / "made"
    assert (
        run("convert", write_model(tmp_path / "model", tokenizer=True), "--to", "megatron-dist", "-o", converted).returncode == 0
    )
    (converted / "tokenizer").chmod(0o1777)
    stranger.run("""echo '{"bos_token": "<planted>", "auto_map": {}}' > made/tokenizer/special_tokens_map.json""")
    result = run("convert", converted, "--to", "hf", "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert f"special_tokens_map.json: belongs to another user (uid {STRANGER_UID}), who has not made" in result.stderr


def test_a_record_above_anothers_checkpoint(stranger: Stranger, tmp_path: Path) -> None:
    """It can neither vouch for the checkpoint nor keep it from being converted; one beside its files still must fit."""
    shutil.copytree(write_model(tmp_path / "model", tokenizer=True), stranger.shared / "model")
    stranger.run("echo garbage > lt-convert.json")
    result = run("convert", stranger.shared / "model", "--to", "torchtitan", "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    os.chown(stranger.shared / "lt-convert.json", 0, 0)
    result = run("convert", stranger.shared / "model", "--to", "torchtitan", "-o", tmp_path / "again")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert "lt-convert.json: malformed" in result.stderr


@pytest.fixture
def private(stranger: Stranger) -> Iterator[Path]:
    """What only this user can read."""
    place = Path(tempfile.mkdtemp(dir=stranger.shared.parent))
    place.chmod(0o700)
    write_model(place / "model", tokenizer=True)
    assert run("convert", place / "model", "--to", "megatron-dist", "-o", place / "run").returncode == 0
    (place / "texts").mkdir()
    (place / "texts" / "c.jsonl").write_text('{"text": "' + SECRET + '"}\n')
    shutil.copytree(TOKENIZER, place / "tokenizer")
    yield place
    shutil.rmtree(place)


OF_DIRECTORIES = {
    "a model": ("model", "convert {link} --to torchtitan -o {out}"),
    "a run": ("run", "convert {link} --to hf -o {out}"),
    "a release": ("run/release", "convert {link} --to hf -o {out}"),
    "a run to train": (
        "run",
        "train --model tiny --mock-data --load {link} --finetune --train-iters 1 --seq-length 16 --device cpu --ranks 1",
    ),
    "texts": ("texts", "preprocess {link}/c.jsonl --tokenizer {tokenizer} -o {out}"),
    "a pattern of texts": ("texts", "preprocess {link}/*.jsonl --tokenizer {tokenizer} -o {out}"),
    "a tokenizer": ("tokenizer", "preprocess {texts} --tokenizer {link} -o {out}"),
    "logs": ("texts", "monitor scrape {link}/c.jsonl"),
}


@pytest.mark.parametrize("of", OF_DIRECTORIES)
def test_a_link_to_a_directory(of: str, private: Path, stranger: Stranger, tmp_path: Path) -> None:
    name, words = OF_DIRECTORIES[of]
    stranger.run(f"mkdir his; ln -s {private}/{name} his/link")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    names = {"link": stranger.shared / "his/link", "out": tmp_path / "out", "tokenizer": TOKENIZER, "texts": tmp_path / "a.jsonl"}
    tool, *rest = words.format(**names).split()
    result = run(tool, *rest)
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert f"his/link: is a link that another user (uid {STRANGER_UID}) has made" in result.stderr
    assert not list(tmp_path.glob("out*"))


def test_a_link_to_a_part_of_a_run(private: Path, stranger: Stranger, tmp_path: Path) -> None:
    """His own tracker names it."""
    stranger.run(f"mkdir run; echo release > run/latest_checkpointed_iteration.txt; ln -s {private}/run/release run/release")
    result = run("convert", stranger.shared / "run", "--to", "hf", "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (65, ""), result.stderr
    assert "run/release: is a link that another user" in result.stderr


EXCHANGING = """
ln -s {secret} link; echo own > own; chmod 644 own; cp own place
until [ -e enough ]; do mv -T link place 2>/dev/null; ln -s {secret} link; cp own new; mv -T new place; done
"""


def test_a_file_that_is_exchanged_while_it_is_opened(secret: Path, stranger: Stranger) -> None:
    stranger.run("mkdir -m 755 his")
    script = ["sh", "-c", EXCHANGING.format(secret=secret)]
    identity = ["setpriv", f"--reuid={STRANGER_UID}", f"--regid={STRANGER_UID}", "--clear-groups"]
    process = subprocess.Popen([*identity, *script], cwd=stranger.shared / "his", stderr=subprocess.DEVNULL)
    read, refused = set(), 0
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end and (refused < 200 or b"own\n" not in read):
            try:
                read.add(storage.read_bytes(stranger.shared / "his/place"))
            except BadData:
                refused += 1
            except (NoInput, OSError):
                pass
    finally:
        (stranger.shared / "his/enough").touch()
        process.wait()
    assert read <= {b"own\n", b""}
    assert refused
