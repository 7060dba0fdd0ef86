"""A repeated command knows what an earlier one has made."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline import sidecar
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers.slices import Slice
from lt_shared.console import BadData, CannotCreate
from lt_shared.contracts import manifest

WriteLines = Callable[[Path, list[Any]], Path]
Run = Callable[..., subprocess.CompletedProcess[str]]
Planned = Callable[..., Plan]
Build = Callable[..., manifest.Dataset]


@pytest.fixture
def up_to_date_with(
    tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, planned: Planned
) -> Callable[..., list[manifest.Dataset] | None]:
    """A finished dataset; returns `finished` for the same command with some changes."""
    write_lines(tmp_path / "a.jsonl", [{"text": "a", "other": "b"}])
    shutil.copytree(demo_tokenizer, tmp_path / "tokenizer")

    def finished(**options: Any) -> list[manifest.Dataset] | None:
        return sidecar.up_to_date(planned([tmp_path / "a.jsonl"], tmp_path / "tokenizer", tmp_path / "out", **options))

    assert finished() is None
    datasets = runs.build(planned([tmp_path / "a.jsonl"], tmp_path / "tokenizer", tmp_path / "out"), 1)
    assert finished() == datasets
    return finished


def test_changed_options_are_not_up_to_date(up_to_date_with: Callable[..., Any]) -> None:
    assert up_to_date_with(append_eod=True) is None
    assert up_to_date_with(json_keys=("other",)) is None
    assert up_to_date_with(json_keys=("text", "other")) is None
    assert up_to_date_with(max_shard_bytes=100) is None
    assert up_to_date_with(shard=Slice(0, 1)) is None


def test_how_bad_lines_are_treated_matters_only_where_there_were_some(
    up_to_date_with: Callable[..., Any], tmp_path: Path, demo_tokenizer: Path, planned: Planned
) -> None:
    assert up_to_date_with(on_error="skip") is not None
    (tmp_path / "b.jsonl").write_bytes(b'bad\n{"text": "a"}\n')

    def wanted(on_error: str) -> Plan:
        return planned([tmp_path / "b.jsonl"], demo_tokenizer, tmp_path / "b", on_error=on_error)

    runs.build(wanted("skip"), 1)
    assert sidecar.up_to_date(wanted("skip")) is not None
    assert sidecar.up_to_date(wanted("fail")) is None
    assert sidecar.up_to_date(wanted("quarantine")) is None


def test_a_changed_input_is_not_up_to_date(up_to_date_with: Callable[..., Any], tmp_path: Path) -> None:
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    assert up_to_date_with() is None


def test_an_input_exchanged_for_one_of_the_same_size_and_time_is_not_up_to_date(
    up_to_date_with: Callable[..., Any], tmp_path: Path
) -> None:
    """As `cp -p` and `rsync -t` exchange it; the same bytes in a new file are up to date."""
    path = tmp_path / "a.jsonl"
    for text, is_current in ((path.read_text(), True), (path.read_text().replace('"a"', '"c"', 1), False)):
        status = path.stat()
        (tmp_path / "new").write_text(text)
        os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
        (tmp_path / "new").replace(path)
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        assert (up_to_date_with() is not None) is is_current


def test_another_tokenizer_is_not_up_to_date(up_to_date_with: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    assert up_to_date_with() is None


def test_a_moved_tokenizer_is_up_to_date_and_named_where_it_is(
    up_to_date_with: Callable[..., Any], tmp_path: Path, demo_tokenizer: Path, planned: Planned
) -> None:
    datasets = sidecar.up_to_date(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out"))
    assert datasets is not None
    assert datasets[0].tokenizer is not None
    assert datasets[0].tokenizer.path == str(demo_tokenizer)


@pytest.mark.parametrize(
    "damage", ["no idx", "no bin", "short bin", "no sidecar", "bad sidecar", "empty sidecar", "older sidecar"]
)
def test_a_damaged_dataset_is_not_up_to_date(up_to_date_with: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    prefix = tmp_path / "out_text_document"
    damages: dict[str, Callable[[], object]] = {
        "no idx": lambda: Path(f"{prefix}.idx").unlink(),
        "no bin": lambda: Path(f"{prefix}.bin").unlink(),
        "short bin": lambda: os.truncate(f"{prefix}.bin", 1),
        "no sidecar": lambda: Path(f"{prefix}.json").unlink(),
        "bad sidecar": lambda: Path(f"{prefix}.json").write_text("["),
        "empty sidecar": lambda: Path(f"{prefix}.json").write_text("{}"),
        "older sidecar": lambda: Path(f"{prefix}.json").write_text('{"v": 1, "dataset": {}, "inputs": [], "options": {}}'),
    }
    damages[damage]()
    assert up_to_date_with() is None


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": None},
        {"dataset": {"prefix": "a", "tokenizer": 5}},
        {"dataset": {"prefix": "a", "tokens": 1, "dtype": "x"}},
        {"part": {}},
        {"part": 5},
        {"options": 5},
        {"counts": None},
    ],
)
def test_a_malformed_sidecar_is_made_anew(
    up_to_date_with: Callable[..., Any], tmp_path: Path, demo_tokenizer: Path, planned: Planned, change: dict[str, Any]
) -> None:
    path = tmp_path / "out_text_document.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    assert up_to_date_with() is None
    sidecar.check_tokenizer(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out"))


def test_a_dataset_that_was_renamed_is_not_up_to_date(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    """It has the plan's fingerprint, and is another key's, or another part."""
    file = write_lines(tmp_path / "a.jsonl", [{"text": f"text {number}", "title": f"title {number}"} for number in range(5)])
    for options, one, other in (
        ({"json_keys": ("text", "title")}, "out_text_document", "out_title_document"),
        ({"max_shard_bytes": 1}, "out-part00001_text_document", "out-part00002_text_document"),
    ):
        run_plan = planned([file], demo_tokenizer, tmp_path / "out", **options)
        runs.build(run_plan, 1)
        assert sidecar.up_to_date(run_plan) is not None
        for end in (".bin", ".idx", ".json"):
            (tmp_path / f"{one}{end}").replace(tmp_path / f"{other}{end}")
            shutil.copy(tmp_path / f"{other}{end}", tmp_path / f"{one}{end}")
        assert sidecar.up_to_date(run_plan) is None


def test_parts_of_an_earlier_run_behind_the_last_are_deleted(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only those of lt-preprocess, and only those of this output."""
    file = tmp_path / "a.jsonl"
    (tmp_path / "out").mkdir()

    def make(documents: int, name: str = "web") -> None:
        write_lines(file, [{"text": f"text {number}"} for number in range(documents)])
        run_plan = planned([file], demo_tokenizer, tmp_path / "out" / name, max_shard_bytes=1)
        runs.build(run_plan, 1)
        assert sidecar.up_to_date(run_plan) is not None

    make(6)
    make(6, "web-part00000_text_document")
    for number in (5, 7):
        Path(tmp_path / f"out/web-part0000{number}_text_document.json").unlink(missing_ok=True)
        Path(tmp_path / f"out/web-part0000{number}_text_document.idx").touch()
    Path(tmp_path / "out/web-part00004_quarantine.jsonl").touch()
    Path(tmp_path / "out/web-part00004_title_document.idx").touch()
    before = {path.name for path in (tmp_path / "out").iterdir()}
    capsys.readouterr()
    make(3)
    gone = {f"web-part0000{number}_text_document{end}" for number in (3, 4) for end in (".bin", ".idx", ".json")}
    assert before - {path.name for path in (tmp_path / "out").iterdir()} == gone | {"web-part00004_quarantine.jsonl"}
    errors = capsys.readouterr().err
    assert "web-part00003_text_document and 1 more: deleted" in errors
    for number in (5, 7):
        assert f"web-part0000{number}_text_document: looks like a part of this run" in errors


def test_a_dataset_of_another_tokenizer_is_not_replaced_unasked(
    build: Build, run: Run, tmp_path: Path, demo_tokenizer: Path, gpt2_vocabulary: Path, write_lines: WriteLines
) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "a word"}])
    datasets = build([file], demo_tokenizer, tmp_path / "out")
    before = Path(f"{datasets.prefix}.bin").read_bytes()
    arguments = [file, "--tokenizer", gpt2_vocabulary, "-o", tmp_path / "out"]
    refused = run(*arguments)
    assert refused.returncode == 73
    assert "was made with another tokenizer, tokenizer (" in refused.stderr
    assert "--force" in refused.stderr
    assert Path(f"{datasets.prefix}.bin").read_bytes() == before
    assert run(*arguments, "--force").returncode == 0
    assert Path(f"{datasets.prefix}.bin").read_bytes() != before


def test_whether_one_dataset_is_whole(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a", "title": "b"}\n')
    plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", json_keys=("text", "title"))
    runs.build(plan, 1)
    text, title = str(tmp_path / "out_text_document"), str(tmp_path / "out_title_document")
    assert sidecar.is_whole(text, plan, 0) is True
    assert sidecar.is_whole(title, plan, 0) is True
    Path(f"{title}.bin").unlink()
    assert sidecar.is_whole(text, plan, 0) is True
    assert sidecar.is_whole(title, plan, 0) is False


def test_standard_input_is_not_named_and_never_up_to_date(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    plan = planned(["-"], demo_tokenizer, tmp_path / "out")
    assert sidecar._sources(plan, sidecar.State(first_input=0, last_input=0)) is None
    assert sidecar.up_to_date(plan) is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"part": {"index": 3, "is_last": False}, "options": {"max_shard_bytes": 5}}, True),
        ({"part": {"index": 2, "is_last": False}, "options": {"max_shard_bytes": 5}}, False),
        ({"part": {"index": 3, "is_last": False}, "options": {"max_shard_bytes": None}}, False),
        ({"part": {"index": 3, "is_last": False}, "options": {}}, False),
        ({"part": {"index": 3, "is_last": False}}, False),
        ({"options": {"max_shard_bytes": 5}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_whether_a_dataset_is_a_part_of_a_run(record: Any, expected: bool, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / "a.json").write_text(json.dumps({"dataset": {"prefix": "a"}} | record))
    assert sidecar.is_of_part(str(tmp_path / "a"), 3) is expected


def test_what_is_said_of_a_dataset_of_another_tokenizer(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", json_keys=("title", "text"))
    prefix = str(tmp_path / "out_text_document")

    def other(tokenizer: dict[str, str] | None) -> None:
        Path(f"{prefix}.json").write_text(json.dumps({"dataset": {"prefix": prefix, "tokenizer": tokenizer}}))

    other({"name": "other", "sha256": "0123456789abcdef"})
    sidecar.check_tokenizer(plan)
    Path(f"{prefix}.idx").touch()
    with pytest.raises(CannotCreate) as caught:
        sidecar.check_tokenizer(plan)
    assert str(caught.value) == (
        f"{prefix}: was made with another tokenizer, other (0123456789ab), not {plan.identity.name} ({plan.identity.sha256[:12]})"
    )
    assert caught.value.hint == "choose another output, or pass --force to replace it"
    other(None)
    sidecar.check_tokenizer(plan)
    other({"name": "moved", "sha256": plan.identity.sha256})
    sidecar.check_tokenizer(plan)
    in_parts = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "parts", max_shard_bytes=1)
    first = tmp_path / "parts-part00000_text_document"
    Path(f"{first}.json").write_text(json.dumps({"dataset": {"prefix": "a", "tokenizer": {"name": "other", "sha256": "0"}}}))
    Path(f"{first}.idx").touch()
    with pytest.raises(CannotCreate, match="parts-part00000_text_document: was made with another tokenizer"):
        sidecar.check_tokenizer(in_parts)
    Path(f"{tmp_path}/out_title_document.json").write_text("[")
    other({"name": "other", "sha256": "0123456789abcdef"})
    with pytest.raises(CannotCreate):
        sidecar.check_tokenizer(plan)


@pytest.mark.parametrize(
    ("change", "is_current"),
    [
        ({}, True),
        ({"v": 1}, False),
        ({"plan": "other"}, False),
        ({"plan": None}, False),
        ({"part": {"index": 1, "is_last": True}}, False),
        ({"part": {"index": 0, "is_last": False}}, False),
        ({"part": {"index": 0}}, False),
        ({"counts": {"bad_lines": 1}}, True),
        ({"counts": {"bad_lines": 1}, "options": {"on_error": "skip", "json_key": "text"}}, False),
        ({"counts": {"bad_lines": 0}, "options": {"on_error": "skip", "json_key": "text"}}, True),
        ({"options": {"on_error": "fail", "json_key": "title"}}, False),
        ({"options": {"on_error": "fail"}}, False),
        ({"crc32": None}, True),
        ({"crc32": {"bin": [2, 0], "idx": [1, 0]}}, False),
    ],
)
def test_what_makes_a_dataset_current(
    up_to_date_with: Callable[..., Any], tmp_path: Path, change: dict[str, Any], is_current: bool
) -> None:
    path = tmp_path / "out_text_document.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    assert (up_to_date_with() is not None) is is_current


@pytest.mark.parametrize(("field", "value"), [("tokens", 2), ("tokens", None), ("dtype", "int32"), ("dtype", None)])
def test_a_dataset_that_is_not_as_described(
    up_to_date_with: Callable[..., Any], tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "out_text_document.json"
    record = json.loads(path.read_bytes())
    record["dataset"][field] = value
    path.write_text(json.dumps(record))
    assert up_to_date_with() is None


def test_an_output_beside_the_input_is_up_to_date(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'bad\n{"text": "a"}\n')
    arguments = [tmp_path, "--tokenizer", demo_tokenizer, "--on-error", "quarantine", "-o", tmp_path / "web"]
    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "web_quarantine.jsonl").exists()
    second = run(*arguments)
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    assert "web: up to date" in second.stderr
    # Neither are the outputs of other runs input.
    other = run(tmp_path, "--tokenizer", demo_tokenizer, "--on-error", "skip", "-o", tmp_path / "other")
    assert json.loads(other.stdout.splitlines()[0])["documents"] == 1


def test_the_output_of_another_corpus_is_not_replaced_unasked(
    run: Run, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    def made(*inputs: str, **options: Any) -> subprocess.CompletedProcess[str]:
        names = [tmp_path / name if name.endswith("l") else name for name in inputs]
        return run(*names, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", **options)

    for name in ("a", "b", "c"):
        write_lines(tmp_path / f"{name}.jsonl", [{"text": f"{name} {number}"} for number in range(3)])
    assert made("a.jsonl").returncode == 0
    before = (tmp_path / "out_text_document.bin").read_bytes()
    refused = made("b.jsonl")
    assert refused.returncode == 73
    assert f"out_text_document: holds the documents of {tmp_path}/a.jsonl, which this command does not read" in refused.stderr
    assert "--force" in refused.stderr
    with (tmp_path / "b.jsonl").open("rb") as lines:
        assert made("-", stdin=lines).returncode == 73
    assert (tmp_path / "out_text_document.bin").read_bytes() == before
    # The same corpus, which has grown, was changed, or was moved.
    assert made("a.jsonl", "b.jsonl").returncode == 0
    assert made("a.jsonl").returncode == 73
    write_lines(tmp_path / "b.jsonl", [{"text": "new"}])
    assert made("a.jsonl", "b.jsonl", "--append-eod").returncode == 0
    (tmp_path / "a.jsonl").rename(tmp_path / "moved.jsonl")
    assert made("moved.jsonl", "b.jsonl").returncode == 0
    assert made("c.jsonl", "--force").returncode == 0
    (tmp_path / "out_text_document.json").unlink()
    foreign = made("c.jsonl")
    assert foreign.returncode == 73
    assert "holds documents that another tool wrote" in foreign.stderr


def test_parts_of_another_corpus_are_not_replaced_unasked(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    files = [write_lines(tmp_path / f"{name}.jsonl", [{"text": f"{name} {number}"} for number in range(9)]) for name in "ab"]
    runs.build(planned(files, demo_tokenizer, tmp_path / "out", max_shard_bytes=20), 1)
    sidecar.check_corpus(planned(files, demo_tokenizer, tmp_path / "out", max_shard_bytes=50))
    with pytest.raises(CannotCreate, match=r"part0000\d_text_document: holds the documents of .*b.jsonl"):
        sidecar.check_corpus(planned(files[:1], demo_tokenizer, tmp_path / "out", max_shard_bytes=20))


@pytest.mark.parametrize(
    "name", ["out_text_document.json", "out_text_document.bin", "out_quarantine.jsonl", "link/out_text_document.idx"]
)
def test_an_input_is_not_replaced_by_an_output(run: Run, tmp_path: Path, demo_tokenizer: Path, name: str) -> None:
    """Neither overwritten nor, as an old quarantine would be, deleted."""
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / name).write_text('{"text": "a"}\n')
    refused = run(tmp_path / name, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out")
    assert refused.returncode == 73
    assert f"{tmp_path / name}: is an input, and would be replaced by an output" in refused.stderr
    assert (tmp_path / name).read_text() == '{"text": "a"}\n'


def test_a_part_is_no_input_of_its_run(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    path = tmp_path / "out-part00007_text_document.json"
    path.write_text('{"text": "a"}\n')
    arguments = [path, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    assert run(*arguments, "--max-shard-size", "1k").returncode == 73
    assert path.read_text() == '{"text": "a"}\n'
    assert run(*arguments).returncode == 0


def test_documents_from_standard_input_are_not_replaced(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    """Nobody can tell whether they are the same again."""
    arguments = ["-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    assert run(*arguments, input='{"text": "a"}\n' * 5).returncode == 0
    tokens = (tmp_path / "out_text_document.bin").read_bytes()
    refused = run(*arguments, input='{"text": "b"}\n')
    assert refused.returncode == 73
    assert "holds 5 documents from standard input or a pipe, and nothing tells whether this command reads them" in refused.stderr
    assert "pass --force to replace it" in refused.stderr
    assert (tmp_path / "out_text_document.bin").read_bytes() == tokens
    assert run(*arguments, "--force", input='{"text": "b"}\n').returncode == 0
    assert (tmp_path / "out_text_document.bin").read_bytes() != tokens


def test_parts_of_a_stream_that_did_not_end_are_replaced(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    arguments = ["-", "--tokenizer", demo_tokenizer, "--max-shard-size", "1k", "-o", tmp_path / "out"]
    lines = json.dumps({"text": "some words " * 20}) + "\n"
    stopped = run(*arguments, input=lines * 50 + "no JSON\n" + lines)
    assert stopped.returncode == 65
    resumed = run(*arguments, input=lines * 50)
    assert resumed.returncode == 0, resumed.stderr
    assert "part of a run that did not end is replaced" in resumed.stderr or "part00000" not in resumed.stderr
    assert run(*arguments, input=lines * 50).returncode == 73


def test_empty_inputs_are_told(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    for name in ("b", "c"):
        (tmp_path / f"{name}.jsonl").touch()
    outcome = run(tmp_path, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out")
    assert outcome.returncode == 0, outcome.stderr
    assert f"{tmp_path}/b.jsonl and 1 more: empty: a failed copy, or no documents" in outcome.stderr


def test_a_quarantine_of_another_key_is_not_replaced(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "title": "b"}\nbad\n')
    arguments = [tmp_path / "a.jsonl", "--tokenizer", demo_tokenizer, "--on-error", "quarantine", "-o", tmp_path / "out"]
    assert run(*arguments).returncode == 0
    quarantine = (tmp_path / "out_quarantine.jsonl").read_bytes()
    refused = run(*arguments, "--json-keys", "title")
    assert refused.returncode == 73
    assert f"out_quarantine.jsonl: holds the bad lines of {tmp_path}/out_text_document" in refused.stderr
    assert (tmp_path / "out_quarantine.jsonl").read_bytes() == quarantine
    assert run(*arguments, "--json-keys", "title", "--force").returncode == 0


def test_a_corpus_that_its_sidecar_does_not_name_any_more_is_kept(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 5)
    arguments = [tmp_path / "a.jsonl", "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"]
    assert run(*arguments).returncode == 0
    (tmp_path / "out_text_document.json").write_text("{broken")
    refused = run(*arguments)
    assert refused.returncode == 73, refused.stderr
    assert run(*arguments, "--force").returncode == 0


def test_a_file_that_changes_before_it_is_read(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan names files of certain sizes; another content is not what the sidecar would say."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n' * 5)
    run_plan = planned([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], demo_tokenizer, tmp_path / "out")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(BadData, match=r"b.jsonl: changed while it was read"):
        runs.build(run_plan, 1)
    assert not list(tmp_path.glob("out*"))
