"""lt-preprocess in a directory where a stranger has left what an interrupted run leaves, with other tokens in it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import nursery
import pytest
from stranger import STRANGER_UID, Stranger

DEMO_TOKENIZER = Path(__file__).parents[1] / "demo/tokenizer"
PARTIAL = (".out_text_document.bin.partial", ".out_text_document.lengths.partial", ".out_text_document.counts.partial")
QUARANTINE = ".out_quarantine.jsonl.partial"
JOURNAL = ".out_text_document.journal"

# The program, with a line in its journal after every 2 kB.
SMALL_STEPS = """
from lt_preprocess.pipeline import run
from lt_preprocess.readers import byte_ranges, chunks
chunks.CHUNK_BYTES = byte_ranges.LocalFile.chunk_bytes = 2000
run.JOURNAL_INTERVAL_SECONDS, run.MAX_SYNC_SHARE = 0, 1e9
from lt_preprocess.cli import main
main()
"""
PROGRAM = "from lt_preprocess.cli import main; main()"


def tokenize(
    source: Path, directory: Path, *options: str, program: str = PROGRAM, keys: tuple[str, ...] = ("text",)
) -> subprocess.CompletedProcess[str]:
    json_keys = [word for key in keys for word in ("--json-keys", key)]
    command = [nursery.light_python(), "-c", program, source, "--tokenizer", DEMO_TOKENIZER, "-o", directory / "out", *json_keys]
    return subprocess.run(
        [*map(str, command), "--append-eod", "--workers", "1", *options], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 documents, a bad line at the beginning; a run with --special-tokens reject fails at the end."""
    path = tmp_path_factory.mktemp("in") / "a.jsonl"
    lines = [json.dumps({"text": f"document {number}, which has some text" * 3, "title": "a title"}) for number in range(500)]
    path.write_text("\n".join(["bad", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("expected")
    done = tokenize(source, directory, "--on-error", "quarantine")
    assert done.returncode == 0, done.stderr
    return outputs(directory)


@pytest.fixture(scope="module")
def interrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that was killed half-way."""
    directory = tmp_path_factory.mktemp("interrupted")
    leave_interrupted(source, directory)
    return directory


def leave_interrupted(source: Path, directory: Path, keys: tuple[str, ...] = ("text",)) -> None:
    kill = "run._Run._report_bad_lines = lambda run: __import__('os').kill(__import__('os').getpid(), 9)\n"
    done = tokenize(source, directory, "--on-error", "quarantine", program=kill_before_main(kill), keys=keys)
    assert done.returncode == -9, done.stderr
    assert {JOURNAL, *PARTIAL} <= set(os.listdir(directory)) or len(keys) > 1


def kill_before_main(statement: str) -> str:
    return SMALL_STEPS.replace("from lt_preprocess.cli", statement + "from lt_preprocess.cli")


def outputs(directory: Path) -> dict[str, bytes]:
    names = ("out_text_document.bin", "out_text_document.idx", "out_quarantine.jsonl")
    return {name: (directory / name).read_bytes() for name in names if (directory / name).exists()}


def hidden(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith("."))


def test_resuming_from_what_was_left(source: Path, interrupted: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """The attacks below change what would be resumed from."""
    directory = Path(shutil.copytree(interrupted, tmp_path / "copy"))
    done = tokenize(source, directory, "--on-error", "quarantine")
    assert done.returncode == 0, done.stderr
    assert "resuming at byte" in done.stderr
    assert outputs(directory) == expected
    assert hidden(directory) == []


def plant(interrupted: Path, stranger: Stranger, names: tuple[str, ...], mode: int) -> None:
    """The stranger's run of the same command, with other tokens."""
    for name in names:
        content = (interrupted / name).read_bytes()
        planted = stranger.shared / name
        planted.write_bytes(content if name == JOURNAL else b"\x07\x00" * (len(content) // 2))
        planted.chmod(mode)
        os.chown(planted, STRANGER_UID, STRANGER_UID)


# Whether others may read or write what he has left makes no difference: all modes of all files, one of each.
@pytest.mark.parametrize(
    ("names", "mode"),
    [
        *(((JOURNAL, *PARTIAL, QUARANTINE), mode) for mode in (0o600, 0o644, 0o666)),
        ((JOURNAL,), 0o600),
        (PARTIAL[:1], 0o644),
        (PARTIAL[1:2], 0o666),
        (PARTIAL[2:], 0o600),
        ((QUARANTINE,), 0o644),
        ((".out_text_document.idx.partial",), 0o666),
    ],
)
def test_nothing_of_a_strangers_run_is_used(
    source: Path, interrupted: Path, stranger: Stranger, names: tuple[str, ...], mode: int
) -> None:
    if names[0].endswith("idx.partial"):
        stranger.run(f"echo mine > {names[0]}; chmod {mode:o} {names[0]}")
    else:
        plant(interrupted, stranger, names, mode)
    done = tokenize(source, stranger.shared, "--on-error", "quarantine")
    assert done.returncode == 73, done.stderr
    assert "belongs to another user" in done.stderr
    assert outputs(stranger.shared) == {}


@pytest.mark.parametrize("kind", ["ln -s victim", "ln victim", "ln -s nowhere", "mkfifo", "mkdir -m 777"])
@pytest.mark.parametrize("name", [JOURNAL, PARTIAL[0], PARTIAL[2], QUARANTINE, ".out_text_document.idx.partial"])
def test_nothing_that_lies_in_the_way_is_opened(
    source: Path, stranger: Stranger, expected: dict[str, bytes], name: str, kind: str
) -> None:
    victim = stranger.shared / "victim"
    victim.write_text("thesis")
    if kind == "ln victim":
        # The kernel lets nobody link what he may not write to; on others that were set up otherwise, anyone may.
        os.link(victim, stranger.shared / name)
    else:
        stranger.run(f"{kind} {name}")
    done = tokenize(source, stranger.shared, "--on-error", "quarantine")
    assert victim.read_text() == "thesis"
    assert not (stranger.shared / "nowhere").exists()
    if done.returncode == 0:
        assert outputs(stranger.shared) == expected
    else:
        assert done.returncode == 73, done.stderr
        assert outputs(stranger.shared) == {}


@pytest.mark.parametrize("name", [JOURNAL, *PARTIAL, QUARANTINE])
def test_own_files_that_others_could_write_are_not_resumed(
    source: Path, interrupted: Path, expected: dict[str, bytes], stranger: Stranger, name: str
) -> None:
    for path in interrupted.iterdir():
        shutil.copy(path, stranger.shared)
    (stranger.shared / name).chmod(0o666)
    done = tokenize(source, stranger.shared, "--on-error", "quarantine")
    assert done.returncode == 0, done.stderr
    assert "resuming" not in done.stderr
    assert outputs(stranger.shared) == expected
    assert hidden(stranger.shared) == []


@pytest.mark.parametrize("name", [*PARTIAL, QUARANTINE])
def test_damage_since_the_kill_is_found(
    source: Path, interrupted: Path, expected: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    directory = Path(shutil.copytree(interrupted, tmp_path / "copy"))
    content = bytearray((directory / name).read_bytes())
    content[len(content) // 2] ^= 4
    (directory / name).write_bytes(content)
    done = tokenize(source, directory, "--on-error", "quarantine")
    assert done.returncode == 0, done.stderr
    assert "gone or damaged: starting from the beginning" in done.stderr
    assert "resuming" not in done.stderr
    assert outputs(directory) == expected
    assert hidden(directory) == []


@pytest.mark.parametrize("keys", [("text",), ("title", "text")], ids=["own journal", "journal of other keys"])
@pytest.mark.parametrize("field", ["datasets", "quarantine"])
def test_a_journal_deletes_nothing_but_its_own(source: Path, stranger: Stranger, field: str, keys: tuple[str, ...]) -> None:
    """A line names the files to delete when the run starts over."""
    leave_interrupted(source, stranger.shared, keys)
    victims = stranger.shared / "elsewhere"
    victims.mkdir()
    for name in (".thesis.bin.partial", ".thesis.counts.partial", ".thesis.partial", ".out_text_document.bin.partial"):
        (victims / name).write_text("thesis")
    (stranger.shared / ".thesis.bin.partial").write_text("thesis")
    (stranger.shared / ".thesis.partial").write_text("thesis")
    [journal] = stranger.shared.glob(".out_*.journal")
    *lines, last = journal.read_text().splitlines()
    for directory in (victims, stranger.shared, Path("../elsewhere")):
        record = json.loads(last)
        if field == "quarantine":
            record["quarantine"] = f"{directory}/thesis"
        else:
            record["datasets"][0] = f"{directory}/thesis"
        lines.append(json.dumps(record))
    record["datasets"][0] = f"{victims}/out_text_document"
    journal.write_text("\n".join([*lines, json.dumps(record)]) + "\n")
    done = tokenize(source, stranger.shared, "--on-error", "quarantine", "--special-tokens", "parse")
    assert done.returncode == 0, done.stderr
    assert len(list(victims.iterdir())) == 4
    assert (stranger.shared / ".thesis.bin.partial").exists()
    assert (stranger.shared / ".thesis.partial").exists()


@pytest.mark.parametrize("name", [".out_title_document.journal", ".out_x_document.journal"])
@pytest.mark.parametrize("kind", ["ln -s victim", "mkfifo", "mkdir"])
def test_journals_of_other_keys_are_not_followed(source: Path, stranger: Stranger, name: str, kind: str) -> None:
    (stranger.shared / "victim").write_text("thesis")
    stranger.run(f"{kind} {name}")
    done = tokenize(source, stranger.shared, "--on-error", "quarantine")
    assert done.returncode == 0, done.stderr
    assert (stranger.shared / "victim").read_text() == "thesis"


@pytest.mark.parametrize("ending", [".bin", ".idx", ".json"])
def test_a_strangers_dataset_is_not_up_to_date(source: Path, stranger: Stranger, ending: str) -> None:
    """Anyone can compute the fingerprint of a plan, and write other tokens beside it."""
    assert tokenize(source, stranger.shared, "--on-error", "quarantine").returncode == 0
    os.chown(stranger.shared / f"out_text_document{ending}", STRANGER_UID, STRANGER_UID)
    done = tokenize(source, stranger.shared, "--on-error", "quarantine")
    assert done.returncode == 73, done.stderr
    assert "belongs to another user" in done.stderr
    done = tokenize(source, stranger.shared, "--on-error", "quarantine", "--force")
    assert done.returncode == 73, done.stderr
    assert "belongs to another user" in done.stderr
    assert stranger.owns(stranger.shared / f"out_text_document{ending}")
    (stranger.shared / f"out_text_document{ending}").unlink()
    assert tokenize(source, stranger.shared, "--on-error", "quarantine", "--force").returncode == 0


def test_a_strangers_merge_is_not_up_to_date(source: Path, stranger: Stranger) -> None:
    assert tokenize(source, stranger.shared, "--on-error", "skip").returncode == 0
    command = [nursery.light_python(), "-m", "lt_preprocess", "merge", "out_text_document", "-o", "merged"]
    merge = lambda: subprocess.run(command, cwd=stranger.shared, capture_output=True, text=True, check=False)  # noqa: E731
    assert merge().returncode == 0
    assert "up to date" in merge().stderr
    os.chown(stranger.shared / "merged.bin", STRANGER_UID, STRANGER_UID)
    done = merge()
    assert (done.returncode, "belongs to another user" in done.stderr) == (73, True)


@pytest.mark.parametrize("kind", ["mkdir -m 777", "mkdir -m 700", "ln -s victims", "mkfifo", "touch"])
def test_buckets_of_a_shuffle_that_a_stranger_made(source: Path, stranger: Stranger, kind: str) -> None:
    assert tokenize(source, stranger.shared, "--on-error", "skip").returncode == 0
    victims = stranger.shared / "victims"
    victims.mkdir()
    (victims / "0-0").write_text("thesis")
    stranger.run(f"{kind} .shuffled.buckets")
    command = [nursery.light_python(), "-m", "lt_preprocess", "shuffle", "out_text_document", "-o", "shuffled"]
    done = subprocess.run(command, cwd=stranger.shared, capture_output=True, text=True, timeout=240, check=False)
    assert (victims / "0-0").read_text() == "thesis"
    assert done.returncode == 73, done.stderr
    assert not (stranger.shared / "shuffled.bin").exists()
