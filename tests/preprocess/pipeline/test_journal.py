"""The journal says how far a run came, and is believed only as far as the disk holds what it says."""

import dataclasses
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import lt_preprocess
from lt_preprocess.pipeline import journal, origin_rows
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.pipeline.state import State
from lt_preprocess.readers.chunks import Position
from lt_shared.console import CannotCreate, TryAgain
from lt_shared.data.indexed_dataset import Extent, Writer
from lt_shared.files import resumable_files, storage

Changed = Callable[..., Plan]
BAD_LINE = b"bad line\n"
ORIGINS = bytes(40)


@pytest.fixture
def changed(tmp_path: Path, demo_tokenizer: Path, planned: Callable[..., Plan]) -> Changed:
    """The plan of a small run, with some changes."""
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "out").mkdir()

    def make(prefix: str | Path = tmp_path / "out/web", **options: Any) -> Plan:
        return planned([tmp_path / "in.jsonl"], demo_tokenizer, prefix, **options)

    return make


@pytest.fixture
def plan(changed: Changed) -> Plan:
    return changed()


@pytest.fixture
def bucket() -> Iterator[str]:
    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()


def path_of(plan: Plan) -> Path:
    directory, name = os.path.split(plan.prefix)
    return Path(directory) / f".{name}_{plan.options.json_keys[0]}_document.journal"


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


PARTIAL = [
    f".web_{name}.partial"
    for name in (
        *("quarantine.jsonl", "text_document.bin", "text_document.counts", "text_document.lengths", "text_document.origins"),
    )
]


def written(plan: Plan, tokens: int = 5, **fields: Any) -> State:
    """What a run of the plan leaves when it is killed after a sync: partial files, and this state of them."""
    extents = []
    for prefix in plan.dataset_prefixes(fields.get("part", 0)):
        with pytest.raises(KeyboardInterrupt), Writer(prefix, plan.dtype, Extent()) as writer:
            writer.append_document(np.arange(tokens))
            extents.append(writer.sync())
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), resumable_files.resumable(plan.quarantine_path(fields.get("part", 0))) as file:
        file.write(BAD_LINE)
        raise KeyboardInterrupt
    name = origin_rows.name(plan.dataset_prefixes(fields.get("part", 0))[0])
    with pytest.raises(KeyboardInterrupt), resumable_files.spool(name) as file:
        file.write(ORIGINS)
        raise KeyboardInterrupt
    return State(
        Position(0, 7, 2), 1, first_input=0, last_input=0, extents=tuple(extents), quarantine_bytes=len(BAD_LINE),
        quarantine_crc32=zlib.crc32(BAD_LINE), origin_bytes=len(ORIGINS), origin_crc32=zlib.crc32(ORIGINS), text_bytes=9,
        **fields,
    )  # fmt: skip


def killed(plan: Plan, **fields: Any) -> State:
    """The same, with the journal."""
    state = written(plan, **fields)
    with journal.opened(plan) as log:
        log.write(state)
    return state


def state_found(plan: Plan, anew: bool = False) -> State | None:
    with journal.opened(plan, anew) as log:
        return log.state


def header(plan: Plan) -> dict[str, Any]:
    return {"v": 3, "kind": "journal", "plan": plan.fingerprint, "made_by": lt_preprocess.__version__}


def test_a_new_journal_is_the_documented_line(plan: Plan) -> None:
    with journal.opened(plan) as log:
        assert log.is_resumable
        assert log.state is None
        assert json.loads(path_of(plan).read_bytes()) == header(plan)
        assert path_of(plan).read_bytes().endswith(b"}\n")
        with pytest.raises(TryAgain), journal.opened(plan):
            pass
    assert state_found(plan) is None


def test_a_state_is_a_line_that_is_durable(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    state = written(plan)
    synced: list[int] = []
    fsync = os.fsync
    with journal.opened(plan) as log:
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size) or fsync(descriptor))
        log.write(state)
        assert synced == [path_of(plan).stat().st_size]
        assert log.state == state
        log.write(dataclasses.replace(state, taken=2))
    lines = path_of(plan).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        header(plan),
        *(
            {
                "position": [0, 7, 2], "taken": taken, "part": 0, "first_input": 0, "last_input": 0,
                "extents": [
                    {
                        "tokens": 5, "sequences": 1, "documents": 1,
                        "tokens_crc32": zlib.crc32(np.arange(5, dtype=np.uint16).tobytes()),
                        "lengths_crc32": zlib.crc32(np.int32([5]).tobytes()),
                        "counts_crc32": zlib.crc32(np.int32([1]).tobytes()),
                    }
                ],
                "quarantine_bytes": 9, "quarantine_crc32": zlib.crc32(BAD_LINE), "bad_lines_before": 0, "bad_lines": 0,
                    "removed_before": {}, "removed": {},
                "origin_bytes": 40, "origin_crc32": zlib.crc32(ORIGINS), "lines": [0, 0],
                "reported": [], "text_bytes": 9, "is_closed": False, "is_last": False, "on_error": "fail",
                    "input_documents": 0, "tokens": 0, "empty_fields": [],
                "datasets": [f"{plan.prefix}_text_document"], "quarantine": f"{plan.prefix}_quarantine.jsonl",
            }
            for taken in (1, 2)
        ),
    ]  # fmt: skip
    assert state_found(plan) == dataclasses.replace(state, taken=2)


def test_a_run_goes_on_where_the_journal_ends(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    state = killed(plan)
    before = path_of(plan).read_bytes()
    with path_of(plan).open("ab") as file:
        file.write(before[-40:-1])
    with journal.opened(plan) as log:
        assert log.state == state
        assert path_of(plan).read_bytes() == before
        log.write(dataclasses.replace(state, taken=0))
    assert path_of(plan).read_bytes().startswith(before)
    assert path_of(plan).read_bytes().count(b"\n") == 3
    assert state_found(plan) == dataclasses.replace(state, taken=0)
    assert capsys.readouterr().err == ""
    assert hidden(path_of(plan).parent) == sorted([path_of(plan).name, *PARTIAL])


@pytest.mark.parametrize("change", [{"append_eod": True}, {"special_tokens": "encode"}])
def test_another_plan_starts_anew_and_deletes_what_is_useless(
    change: dict[str, Any], changed: Changed, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(changed())
    other = changed(**change)
    assert state_found(other) is None
    assert json.loads(path_of(other).read_bytes()) == header(other)
    assert hidden(path_of(other).parent) == [path_of(other).name]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("field", ["v", "kind", "plan", "made_by"])
def test_another_version_starts_anew(field: str, plan: Plan) -> None:
    killed(plan)
    first, *rest = path_of(plan).read_text().splitlines(keepends=True)
    path_of(plan).write_text(json.dumps(json.loads(first) | {field: "other"}) + "\n" + "".join(rest))
    assert state_found(plan) is None
    assert hidden(path_of(plan).parent) == [path_of(plan).name]


@pytest.mark.parametrize(("bad_lines", "is_resumed"), [(0, True), (1, False)])
def test_how_bad_lines_are_treated_matters_only_where_there_were_some(bad_lines: int, is_resumed: bool, changed: Changed) -> None:
    state = killed(changed(on_error="skip"), bad_lines=bad_lines)
    assert state_found(changed(on_error="skip")) == state
    assert state_found(changed(on_error="quarantine")) == (state if is_resumed else None)


@pytest.mark.parametrize("name", PARTIAL)
@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_what_is_damaged_is_made_again(name: str, damage: str, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    killed(plan)
    path = path_of(plan).parent / name
    content = path.read_bytes()
    {
        "gone": path.unlink,
        "short": lambda: path.write_bytes(content[:-1]),
        "changed": lambda: path.write_bytes(bytes([content[0] ^ 1]) + content[1:]),
    }[damage]()
    assert state_found(plan) is None
    said = f"{path_of(plan)}: what it describes is gone or damaged: starting from the beginning"
    assert said in capsys.readouterr().err
    assert json.loads(path_of(plan).read_bytes()) == header(plan)
    assert hidden(path_of(plan).parent) == [path_of(plan).name]


def test_what_was_not_worth_keeping_is_not_missed(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """Documents without text."""
    with journal.opened(plan) as log:
        log.write(dataclasses.replace(written(plan, tokens=0), quarantine_crc32=1))
    assert state_found(plan) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "is_told"), [(b"", False), (b"{}\n", False), (b"junk", False), (b"{}\n{}", False), (b"{}\n{}\n", True)]
)
def test_a_journal_without_a_state(content: bytes, is_told: bool, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    path_of(plan).write_bytes(content)
    path_of(plan).chmod(0o600)
    assert state_found(plan) is None
    said = f"{path_of(plan)}: no valid record of the earlier run: starting from the beginning"
    assert (said in capsys.readouterr().err) == is_told
    assert json.loads(path_of(plan).read_bytes()) == header(plan)


def test_a_journal_is_deleted_with_what_it_names(plan: Plan) -> None:
    state = written(plan)
    with journal.opened(plan) as log:
        log.write(state)
        log.delete()
    assert hidden(path_of(plan).parent) == []
    with journal.opened(plan) as log:
        log.delete()
    assert hidden(path_of(plan).parent) == []


def test_anew_forgets_all(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    killed(plan)
    assert state_found(plan, anew=True) is None
    assert hidden(path_of(plan).parent) == [path_of(plan).name]
    assert json.loads(path_of(plan).read_bytes()) == header(plan)
    assert state_found(plan, anew=True) is None
    assert json.loads(path_of(plan).read_bytes()) == header(plan)
    assert capsys.readouterr().err == ""


def test_standard_input_has_no_journal(tmp_path: Path, demo_tokenizer: Path, planned: Callable[..., Plan]) -> None:
    plan = planned(["-"], demo_tokenizer, tmp_path / "web")
    with journal.opened(plan) as log:
        assert not log.is_resumable
        log.write(State())
        log.delete()
        assert log.state is None
    assert os.listdir(tmp_path) == []


EDITS: dict[str, dict[str, Any]] = {
    "another directory's dataset": {"datasets": ["/etc/other_text_document"]},
    "another name": {"datasets": ["web_text"]},
    "no key": {"datasets": ["web__document"]},
    "no dataset": {"datasets": [], "extents": []},
    "more datasets than extents": {"datasets": ["web_text_document", "web_title_document"]},
    "no list": {"datasets": "web_text_document"},
    "no text": {"datasets": [5]},
    "another quarantine": {"quarantine": "web_quarantine.json"},
    "a quarantine before it": {"quarantine": "x/aweb_quarantine.jsonl"},
    "no quarantine": {"quarantine": None},
    "no word": {"on_error": 5},
    "a part of few digits": {"datasets": ["web-part0001_text_document"]},
    "a negative count": {"taken": -1},
    "a count that is none": {"taken": True},
    "half a count": {"text_bytes": 1.5},
    "a position of four": {"position": [0, 7, 2, 1]},
    "no position": {"position": None},
    "a negative extent": {"extents": [{"tokens": -1}]},
    "an unknown field of an extent": {"extents": [{"words": 1}]},
    "no extents": {"extents": 5},
    "no last input": {"last_input": "0"},
    "no flag": {"is_closed": 1},
    "no last flag": {"is_last": 0},
    "what was reported is no text": {"reported": [5]},
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_line_that_the_run_would_not_write_is_none(edit: str, plan: Plan) -> None:
    """The line before it counts. The names in a line are those of files to delete."""
    state = killed(plan)
    lines = path_of(plan).read_text().splitlines()
    before = path_of(plan).read_bytes()
    with path_of(plan).open("a") as file:
        file.write(json.dumps(json.loads(lines[-1]) | EDITS[edit]) + "\n")
    assert state_found(plan) == state
    assert path_of(plan).read_bytes().startswith(before)


def test_of_two_datasets_both_must_be_of_the_run(changed: Changed) -> None:
    plan = changed(json_keys=("text", "title"))
    state = killed(plan)
    last = json.loads(path_of(plan).read_text().splitlines()[-1])
    for datasets in (["web_text_document", "/etc/passwd"], ["/etc/passwd", "web_title_document"]):
        with path_of(plan).open("a") as file:
            file.write(json.dumps(last | {"datasets": datasets}) + "\n")
        assert state_found(plan) == state


def test_a_line_without_its_end_is_none(plan: Plan) -> None:
    state = killed(plan)
    before = path_of(plan).read_bytes()
    last = json.loads(before.splitlines()[-1])
    with path_of(plan).open("a") as file:
        file.write(json.dumps(last | {"taken": 2}))
    assert state_found(plan) == state
    assert path_of(plan).read_bytes() == before


def test_a_name_that_is_no_text(changed: Changed, tmp_path: Path) -> None:
    """Any byte but a slash may be in the name of a file, and a dataset may have a name in any language."""
    for name in (b"w\xff\xeab", "\u7db2".encode()):
        plan = changed(tmp_path / "out" / os.fsdecode(name))
        state = killed(plan)
        assert state_found(plan) == state


def test_a_directory_that_was_moved(tmp_path: Path, changed: Changed) -> None:
    plan = changed()
    state = killed(plan)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert state_found(changed(tmp_path / "moved/web")) == state
    assert state_found(changed(tmp_path / "moved/web", append_eod=True)) is None
    assert hidden(tmp_path / "moved") == [".web_text_document.journal"]


def test_an_older_dataset_stays_until_the_new_one_is_published(plan: Plan) -> None:
    state = killed(plan)
    for end in ("bin", "idx"):
        Path(f"{plan.prefix}_text_document.{end}").write_bytes(b"old")
    assert state_found(plan) == state
    assert Path(f"{plan.prefix}_text_document.idx").read_bytes() == b"old"


def test_where_locks_do_not_work_a_run_leaves_its_own_files(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    state = killed(plan)
    assert state_found(plan) == state


def test_parts_have_names_of_their_own(changed: Changed) -> None:
    plan = changed(max_shard_bytes=100)
    state = killed(plan)
    assert path_of(plan).name == ".web_text_document.journal"
    assert ".web-part00000_text_document.bin.partial" in hidden(path_of(plan).parent)
    assert state_found(plan) == state


def overlapping(changed: Changed, **options: Any) -> list[str]:
    """What is hidden beside the outputs once a run of these options has begun."""
    plan = changed(**options)
    with journal.opened(plan):
        return hidden(path_of(plan).parent)


def test_a_run_of_other_keys_that_shares_a_dataset_is_deleted(changed: Changed) -> None:
    killed(changed(json_keys=("title", "text")))
    assert overlapping(changed) == [".web_text_document.journal"]


def test_a_run_of_other_keys_that_shares_none_is_left(changed: Changed) -> None:
    other = changed(json_keys=("title",))
    state = killed(other)
    found = overlapping(changed)
    assert ".web_title_document.journal" in found and ".web_title_document.bin.partial" in found
    assert state_found(other) == state


def test_all_journals_beside_it_are_looked_at(changed: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock on those with which nothing is shared."""
    others = [changed(json_keys=keys) for keys in (("a",), ("b", "text"), ("z",))]
    written(others[0])
    for other in others:
        with journal.opened(other) as log:
            log.write(written(other))
    locked: list[str] = []
    true = resumable_files.locked
    monkeypatch.setattr(resumable_files, "locked", lambda path, name: locked.append(os.path.basename(path)) or true(path, name))
    found = overlapping(changed)
    assert [name for name in found if name.endswith(".journal")] == [
        ".web_a_document.journal", ".web_text_document.journal", ".web_z_document.journal",
    ]  # fmt: skip
    assert locked == [".web_text_document.journal", ".web_b_document.journal"]


def test_a_run_that_is_at_work_is_left(changed: Changed) -> None:
    other = changed(json_keys=("title", "text"))
    killed(other)
    with path_of(other).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ".web_title_document.journal" in overlapping(changed)
    assert overlapping(changed) == [".web_text_document.journal"]


@pytest.mark.parametrize("name", ["link", "directory", "pipe"])
def test_what_is_no_journal_under_such_a_name_is_left(name: str, changed: Changed, tmp_path: Path) -> None:
    path = tmp_path / "out/.web_title_document.journal"
    {"link": lambda: path.symlink_to("nowhere"), "directory": path.mkdir, "pipe": lambda: os.mkfifo(path)}[name]()
    assert overlapping(changed) == [".web_text_document.journal", ".web_title_document.journal"]


def test_a_name_with_characters_of_patterns(changed: Changed, tmp_path: Path) -> None:
    (tmp_path / "o[u]t").mkdir()
    killed(changed(tmp_path / "o[u]t/w*b", json_keys=("title", "text")))
    killed(changed(tmp_path / "o[u]t/wxb", json_keys=("title", "text")))
    with journal.opened(changed(tmp_path / "o[u]t/w*b")):
        found = hidden(tmp_path / "o[u]t")
    assert [name for name in found if name.endswith(".journal")] == [".w*b_text_document.journal", ".wxb_title_document.journal"]


def test_what_a_finished_run_left_is_deleted(changed: Changed) -> None:
    plan = changed()
    journal.delete_finished(plan)
    killed(plan)
    journal.delete_finished(plan)
    assert hidden(path_of(plan).parent) == []


@pytest.mark.parametrize("content", [b"", b"junk\n", b"{}\n{}\n"])
def test_a_torn_journal_of_a_finished_run_is_deleted(content: bytes, plan: Plan) -> None:
    path_of(plan).write_bytes(content)
    path_of(plan).chmod(0o600)
    journal.delete_finished(plan)
    assert hidden(path_of(plan).parent) == []


def test_a_journal_whose_first_line_is_no_header_is_deleted_alone(plan: Plan) -> None:
    """Nothing tells that its partial files are of no use."""
    killed(plan)
    lines = path_of(plan).read_bytes().splitlines(keepends=True)
    path_of(plan).write_bytes(b"[1]\n" + lines[1])
    journal.delete_finished(plan)
    assert hidden(path_of(plan).parent) == PARTIAL


def test_what_another_run_left_is_not(changed: Changed) -> None:
    other = changed(append_eod=True)
    state = killed(other)
    before = hidden(path_of(other).parent)
    journal.delete_finished(changed())
    assert hidden(path_of(other).parent) == before
    assert state_found(other) == state
    with path_of(other).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        journal.delete_finished(other)
    assert hidden(path_of(other).parent) == before


def test_a_link_in_the_place_of_a_finished_runs_journal(plan: Plan) -> None:
    path_of(plan).symlink_to("nowhere")
    journal.delete_finished(plan)
    assert path_of(plan).is_symlink()
    with pytest.raises(CannotCreate):
        state_found(plan)


@pytest.mark.parametrize("published", ["nothing", "tokens", "all", "all but the counts"])
@pytest.mark.parametrize("quarantine", ["partial", "published", "another", "gone"])
def test_a_part_that_was_closed(published: str, quarantine: str, changed: Changed) -> None:
    """Its files were being published. A dataset without a sidecar is not whole, so that all of it is made again."""
    plan = changed(on_error="quarantine", max_shard_bytes=100)
    prefix = plan.dataset_prefixes(0)[0]
    state = killed(plan, is_closed=True, is_last=True)
    partial = {
        name: Path(f"{os.path.dirname(prefix)}/.{os.path.basename(prefix)}.{name}.partial")
        for name in ("bin", "counts", "lengths")
    }
    if published != "nothing":
        partial["bin"].rename(f"{prefix}.bin")
    if published.startswith("all"):
        partial["lengths"].unlink()
        Path(f"{prefix}.idx").write_bytes(b"index")
    if published == "all":
        partial["counts"].unlink()
    path = Path(plan.quarantine_path(0))
    hidden_quarantine = path.with_name(f".{path.name}.partial")
    if quarantine in ("published", "another"):
        hidden_quarantine.rename(path)
    if quarantine == "another":
        path.write_bytes(BAD_LINE[::-1])
    if quarantine == "gone":
        hidden_quarantine.unlink()
    expected = published in ("nothing", "tokens") and quarantine in ("partial", "published")
    assert state_found(plan) == (state if expected else None)
    assert not Path(f"{prefix}.idx").exists() or published == "all"
    if expected:
        assert not Path(f"{prefix}.bin").exists()


def test_a_part_that_is_not_there_any_more(changed: Changed) -> None:
    """Only the second one is begun; nothing of the first is on the disk."""
    plan = changed(max_shard_bytes=100)
    killed(plan, part=1)
    assert state_found(plan) is None


def remote(changed: Changed, bucket: str, **options: Any) -> Plan:
    return changed(f"{bucket}/web", max_shard_bytes=100, **options)


def test_a_remote_journal_has_finished_parts_only(changed: Changed, bucket: str) -> None:
    plan = remote(changed, bucket)
    path = f"{bucket}/.web_text_document.journal"
    nothing = State(extents=(Extent(),), taken=3)
    with journal.opened(plan) as log:
        assert not log.is_resumable
        assert log.state is None
        log.write(dataclasses.replace(nothing, extents=(Extent(1, 1, 1),)))
        assert (log.state, storage.exists(path)) == (None, False)
        log.write(nothing)
        assert log.state == nothing
    assert [
        json.loads(line)["v" if number == 0 else "taken"] for number, line in enumerate(storage.read_bytes(path).splitlines())
    ] == [3, 3]
    assert json.loads(storage.read_bytes(path).splitlines()[0]) == header(plan)
    assert state_found(plan) == nothing
    assert state_found(remote(changed, bucket, append_eod=True)) is None
    with journal.opened(plan) as log:
        log.write(dataclasses.replace(nothing, part=1))
    assert state_found(plan) is None, "the first part is not there"
    with journal.opened(plan) as log:
        log.write(nothing)
    assert state_found(plan, anew=True) is None
    assert not storage.exists(path)
    with journal.opened(plan) as log:
        log.write(nothing)
        log.delete()
    assert not storage.exists(path)
    with journal.opened(plan) as log:
        log.write(nothing)
    journal.delete_finished(changed(f"{bucket}/web"))
    assert storage.exists(path), "a run in one part has no journal"
    journal.delete_finished(plan)
    assert not storage.exists(path)


def test_a_part_of_two_datasets_is_finished_when_both_are(changed: Changed, bucket: str) -> None:
    with journal.opened(remote(changed, bucket, json_keys=("text", "title"))) as log:
        log.write(State(extents=(Extent(), Extent(1, 1, 1))))
        assert log.state is None


def test_a_remote_run_in_one_part_has_no_journal(changed: Changed, bucket: str) -> None:
    with journal.opened(changed(f"{bucket}/web")) as log:
        log.write(State(extents=(Extent(),)))
        assert (log.is_resumable, log.state) == (False, None)
    assert not storage.exists(f"{bucket}/.web_text_document.journal")
