"""A stranger shares the directory in which lt-convert writes, and has put something there before."""

import json
import os
import shutil
from pathlib import Path

import pytest
from convert_models import content, run, run_here, write_model
from stranger import Stranger

from lt_convert.commands import conversion
from lt_convert.engine import result

pytestmark = pytest.mark.usefixtures("unsynced")
JOURNAL = ".lt-convert.journal"
# Below .out.partial, of which the victim is the owner: how it came to be there, or to be writable, does not matter.
PLANTED_INSIDE = {
    "link to a file": "ln -s ../victim {name}",
    "link to nothing": "ln -s ../nowhere {name}",
    "link to a directory": "ln -s ../victims {name}",
    "pipe": "mkfifo {name}",
    "own file": "echo mine > {name}; chmod 644 {name}",
    "own directory": "mkdir -m 755 {name}",
}
NAMES = ("config.json", "model.safetensors", "lt-convert.json", JOURNAL, ".config.json.partial")
PLANTED_BESIDE = {
    "directory": "mkdir -m 777 .out.partial; echo {identity} > .out.partial/.lt-convert.journal",
    "private directory": "mkdir -m 700 .out.partial",
    "link": "mkdir -m 777 his; ln -s his .out.partial",
    "link to the victim's directory": "ln -s victims .out.partial",
    "file": "echo mine > .out.partial",
    "pipe": "mkfifo .out.partial",
    "links inside": "mkdir -m 777 .out.partial; cd .out.partial; ln -s ../victim config.json; ln -s ../victim model.safetensors",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a format from which hf is made."""
    root = tmp_path_factory.mktemp("planted")
    done = run_here(write_model(root / "hf", tokenizer=True), "--to", "torchtitan", "-o", root / "source")
    assert done.returncode == 0, done.stderr
    return root / "source"


@pytest.fixture(scope="module")
def undisturbed(source: Path) -> Path:
    """`source` as hf, where no stranger can write."""
    out = source.with_name("undisturbed")
    done = run(source, "--to", "hf", "-o", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def out(stranger: Stranger) -> Path:
    (stranger.shared / "victim").write_text("thesis")
    (stranger.shared / "victims").mkdir()
    (stranger.shared / "victims" / "thesis.tex").write_text("thesis")
    return stranger.shared / "out"


def check_victims(out: Path) -> None:
    assert (out.parent / "victim").read_text() == "thesis"
    assert [path.name for path in (out.parent / "victims").iterdir()] == ["thesis.tex"]
    assert not (out.parent / "nowhere").exists()


def is_own(directory: Path) -> bool:
    return all(os.lstat(path).st_uid == os.geteuid() and not path.is_symlink() for path in (directory, *directory.rglob("*")))


@pytest.mark.parametrize("planted", PLANTED_BESIDE)
def test_a_planted_partial_result_is_refused(planted: str, identity: str, source: Path, stranger: Stranger, out: Path) -> None:
    stranger.run(PLANTED_BESIDE[planted].format(identity=identity))
    done = run_here(source, "--to", "hf", "-o", out)
    assert (done.returncode, done.stdout) == (73, ""), done.stderr
    assert ".out.partial" in done.stderr
    assert not os.path.lexists(out)
    check_victims(out)


def interrupted(undisturbed: Path, out: Path) -> Path:
    """The partial directory that a kill in the last step leaves: all is in it, the journal names every tensor."""
    partial = out.with_name(".out.partial")
    shutil.copytree(undisturbed, partial)
    partial.chmod(0o700)
    return partial


def journal_of(partial: Path, identity: str) -> None:
    record = json.loads((partial / "lt-convert.json").read_text())
    pieces = [[name, *piece] for name, entry in record["files"].items() for piece in entry["pieces"] if piece[3]]
    (partial / JOURNAL).write_text("".join(f"{line}\n" for line in (identity, *map(json.dumps, pieces))))


@pytest.fixture(scope="module")
def identity(source: Path) -> str:
    """That of the plan, which anyone can compute who can read the source: no destination is in it."""
    identities: list[str] = []

    def write_outputs(outputs: object, destination: str, identity: str, *arguments: object) -> None:
        identities.append(identity)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "write_outputs", write_outputs)
        conversion.convert(conversion.Request(str(source), "hf", str(source.with_name("out"))))
    return identities[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("planted", PLANTED_INSIDE)
def test_nothing_planted_inside_is_followed_or_kept(
    planted: str, name: str, identity: str, source: Path, undisturbed: Path, stranger: Stranger, out: Path
) -> None:
    partial = interrupted(undisturbed, out)
    journal_of(partial, identity)
    (partial / name).unlink(missing_ok=True)
    partial.chmod(0o777)
    stranger.run(f"cd .out.partial; {PLANTED_INSIDE[planted].format(name=name)}")
    partial.chmod(0o700)
    done = run_here(source, "--to", "hf", "-o", out)
    assert done.returncode == 0, done.stderr
    assert is_own(out)
    check_victims(out)
    assert content(out) == content(undisturbed)


@pytest.mark.parametrize("change", ["writable directory", "writable file", "hard link", "other owner", "other bytes"])
def test_what_others_could_have_written_is_not_resumed(
    change: str, identity: str, source: Path, undisturbed: Path, out: Path
) -> None:
    partial = interrupted(undisturbed, out)
    before = content(partial)
    journal_of(partial, identity)
    path = partial / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    if change == "writable directory":
        partial.chmod(0o777)
    elif change == "writable file":
        path.chmod(0o666)
    elif change == "hard link":
        os.link(path, out.with_name("second"))
    elif change == "other owner":
        os.chown(path, 1001, 1001)
    done = run_here(source, "--to", "hf", "-o", out)
    assert done.returncode == 0, done.stderr
    # Where nobody could write, a changed byte is noticed by the checksum in the journal.
    assert ("changed since it was written" if change == "other bytes" else "starts over") in done.stderr or (
        change == "writable directory"
    )
    assert content(out) == before
    assert is_own(out)


def test_an_untouched_partial_result_is_resumed(identity: str, source: Path, undisturbed: Path, out: Path) -> None:
    """Also with a umask that lets the group write."""
    partial = interrupted(undisturbed, out)
    before = content(partial)
    journal_of(partial, identity)
    for path in partial.iterdir():
        path.chmod(0o664)
    done = run(source, "--to", "hf", "-o", out, umask=0o002)
    assert done.returncode == 0, done.stderr
    assert "resumes after" in done.stderr
    assert "starts over" not in done.stderr
    assert content(out) == before


@pytest.mark.parametrize("owner", ["directory", "record", "weights", "folder", "link to a file", "writable"])
def test_another_users_result_is_not_up_to_date(owner: str, source: Path, stranger: Stranger, out: Path, tmp_path: Path) -> None:
    """All sizes and times are as expected, but the stranger chooses the weights."""
    done = run_here(source, "--to", "megatron-legacy", "-o", out)
    assert done.returncode == 0, done.stderr
    weights = out / "release" / "mp_rank_00" / "model_optim_rng.pt"
    if owner == "link to a file":
        moved = shutil.move(weights, out.with_name("his"))
        weights.symlink_to(moved)
    elif owner == "writable":
        weights.chmod(0o666)
    else:
        place = {"directory": out, "record": out / "lt-convert.json", "weights": weights, "folder": weights.parent}[owner]
        os.chown(place, 1001, 1001)
    again = run_here(source, "--to", "megatron-legacy", "-o", out)
    assert (again.returncode, again.stdout) == (73, ""), again.stderr
    assert "belongs to another user" in again.stderr or "symbolic link" in again.stderr or "written to by others" in again.stderr


def test_a_published_result_is_up_to_date_with_any_umask(source: Path, out: Path) -> None:
    for _ in range(2):
        done = run(source, "--to", "hf", "-o", out, umask=0o002)
        assert done.returncode == 0, done.stderr
    assert "up to date" in done.stderr
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize("place", ["out", "folder/out"])
def test_a_strangers_link_does_not_lead_to_the_destination(place: str, source: Path, stranger: Stranger, out: Path) -> None:
    (out.parent / "victims").chmod(0o700)
    stranger.run(f"ln -s victims{'/new' if place == 'out' else ''} {place.partition('/')[0]}")
    for force in ([], ["--force"]):
        done = run_here(source, "--to", "hf", "-o", out.parent / place, *force)
        assert (done.returncode, done.stdout) == (73, ""), done.stderr
        assert "a link that another user (uid 1001) has put there" in done.stderr
    check_victims(out)


def test_hidden_files_of_a_kill_in_the_last_deletions_go_with_the_next_run_here(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_here(source, "--to", "hf", "-o", out)
    (out / JOURNAL).write_text("0\n")
    shutil.copytree(out, tmp_path / ".out.replaced")
    done = run_here(source, "--to", "hf", "-o", out)
    assert done.returncode == 0
    assert "up to date" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (out / JOURNAL).exists()


def test_a_strangers_hidden_directory_stays(source: Path, stranger: Stranger, out: Path) -> None:
    """It is not this user's; and while a partial result lies there, another process may need what it replaced."""
    run_here(source, "--to", "hf", "-o", out)
    stranger.run("mkdir .out.replaced; echo his > .out.replaced/file")
    run_here(source, "--to", "hf", "-o", out)
    assert (out.parent / ".out.replaced" / "file").exists()
    shutil.rmtree(out.parent / ".out.replaced")
    (out.parent / ".out.replaced").mkdir()
    (out.parent / ".out.partial").mkdir()
    run_here(source, "--to", "hf", "-o", out)
    assert (out.parent / ".out.replaced").exists()
