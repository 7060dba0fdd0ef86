"""Inputs are found in the order given, and none is left out without a word."""

import os
from pathlib import Path

import fsspec
import pytest

from lt_preprocess.readers import paths
from lt_shared.console import BadData, NoInput


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = [
        "corpus/b.jsonl.zst",
        "corpus/a.jsonl",
        "corpus/deep/er/c.txt.bz2",
        "corpus/deep/d.parquet",
        "corpus/c4.json.gz",
        "corpus/README.md",
        "corpus/.hidden.jsonl",
        "corpus/.git/a.json",
        "other/e.ndjson",
        "other/notes",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


BELOW = [f"corpus/{name}" for name in ("a.jsonl", "b.jsonl.zst", "c4.json.gz", "deep/d.parquet", "deep/er/c.txt.bz2")]


def test_files_globs_and_standard_input(corpus: Path) -> None:
    assert paths.expand_patterns(["other/notes", "-", "corpus/*.jsonl*"]) == [
        "other/notes",
        "-",
        "corpus/a.jsonl",
        "corpus/b.jsonl.zst",
    ]


def test_directories(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paths.expand_patterns(["other", "corpus/"]) == ["other/e.ndjson", *BELOW]
    reported = capsys.readouterr().err
    assert "other: not read because of their names: 1 files, such as other/notes" in reported
    assert "corpus/: not read because of their names: 1 files, such as corpus/README.md" in reported
    assert paths.expand_patterns(["*"]) == [*BELOW, "other/e.ndjson"]


def test_links_are_followed_once(corpus: Path) -> None:
    (corpus / "corpus/deep/loop").symlink_to(corpus / "corpus")
    (corpus / "corpus/linked").symlink_to(corpus / "other")
    (corpus / "other/f.jsonl").symlink_to(corpus / "corpus/a.jsonl")
    found = paths.expand_patterns(["corpus"])
    assert {os.path.basename(path) for path in found} == {os.path.basename(path) for path in [*BELOW, "e.ndjson", "f.jsonl"]}
    assert len(found) == len(BELOW) + 2


def test_a_pattern_reads_a_file_once_whatever_links_lead_to_it(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "corpus/loop").symlink_to(".")
    (corpus / "corpus/deep/again").symlink_to("er")
    assert paths.expand_patterns(["corpus/**/*.jsonl"]) == [BELOW[0]]
    assert "not read again behind links to directories: 40 files, such as corpus/loop/" in capsys.readouterr().err
    assert len(paths.expand_patterns(["corpus/*"])) == len(BELOW) + 1
    # A link to a file is a file of its own.
    (corpus / "corpus/z.jsonl").symlink_to("a.jsonl")
    assert paths.expand_patterns(["corpus/*.jsonl"]) == [BELOW[0], "corpus/z.jsonl"]


def test_lists(corpus: Path) -> None:
    Path("list").write_text("other\n\n@inner\r\n-\n")
    Path("inner").write_text("corpus/*.jsonl\ncorpus/deep")
    assert paths.expand_patterns(["@list"]) == ["other/e.ndjson", "corpus/a.jsonl", *BELOW[3:], "-"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nothing*", r"nothing\*: no file matches"),
        ("empty", "empty: no file below ends in"),
        ("@missing", "missing: no such file"),
        ("@blank", "blank: the list names no input"),
    ],
)
def test_nothing_found(corpus: Path, pattern: str, message: str) -> None:
    Path("empty").mkdir()
    Path("blank").write_text("\n \n")
    with pytest.raises(NoInput, match=message):
        paths.expand_patterns([pattern])


def test_remote_directories() -> None:
    for name in ("b.jsonl", "deep/a.jsonl.gz", "deep/x.bin", ".hidden/c.jsonl"):
        with fsspec.open(f"memory://directories/{name}", "wb") as file:
            file.write(b"")
    found = paths.expand_patterns(["memory://directories/"])
    assert [path.split("directories/")[1] for path in found] == ["b.jsonl", "deep/a.jsonl.gz"]
    assert all(path.startswith("memory://") for path in found)


def test_kinds_by_name() -> None:
    assert all(map(paths.is_text, ["a.txt", "s3://b/a.txt.gz", "a.txt.zst"]))
    assert not any(map(paths.is_text, ["a.jsonl", "txt", "a.txt.jsonl", "-", "a.txt.tar"]))


def test_a_list_that_names_itself(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"@{tmp_path}/other\n")
    (tmp_path / "other").write_text(f"@{tmp_path}/list\n")
    with pytest.raises(BadData, match="names itself"):
        paths.expand_patterns([f"@{tmp_path}/list"])


def test_names_in_capitals(tmp_path: Path) -> None:
    for name in ("A.JSONL", "B.Txt", "C.JSONL.GZ"):
        (tmp_path / name).touch()
    assert [Path(path).name for path in paths.expand_patterns([str(tmp_path)])] == ["A.JSONL", "B.Txt", "C.JSONL.GZ"]


def test_pipes_are_read_when_they_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Opening one that nobody writes to would wait for ever."""
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").touch()
    file, pipe = str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")
    assert paths.expand_patterns([str(tmp_path)]) == [file]
    assert paths.expand_patterns([f"{tmp_path}/*.jsonl"]) == [file]
    assert capsys.readouterr().err.count(f"{pipe}: not read") == 2
    assert paths.expand_patterns([pipe]) == [pipe]


def test_what_the_tool_wrote_is_not_read_again(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sidecar = '{\n  "v": 3,\n  "dataset": {\n    "prefix": "/corpus/web_text_document"\n  }\n}\n'
    Path("corpus/web_text_document.json").write_text(sidecar)
    Path("corpus/merged.json").write_text(sidecar)
    Path("corpus/merged.idx").touch()
    line = '{"source": "a", "line": 1, "offset": 0, "reason": "not JSON", "raw": "x"}\n'
    Path("corpus/web_quarantine.jsonl").write_text(line)
    assert paths.expand_patterns(["corpus"]) == BELOW
    assert "not read because lt-preprocess wrote them: 3 files, such as corpus/merged.json" in capsys.readouterr().err
    assert paths.expand_patterns(["corpus/*.json*"]) == [BELOW[0], BELOW[1], BELOW[2]]
    # What is named alone is read, and left out as one of the names that a shell makes of d/*.
    assert paths.expand_patterns(["corpus/merged.json"]) == ["corpus/merged.json"]
    Path("corpus/web.idx").write_bytes(b"MMIDIDX\0\0")
    named = ["corpus/a.jsonl", "corpus/merged.json", "corpus/web.bin", "corpus/web.idx"]
    assert paths.expand_patterns(named) == ["corpus/a.jsonl"]
    assert paths.expand_patterns(["corpus/[aw]*"]) == ["corpus/a.jsonl"]
    Path("corpus/web.idx").unlink()
    # Documents may have such names, too.
    Path("corpus/my_text_document.json").write_text('{"text": "a"}\n')
    Path("corpus/my_quarantine.jsonl").write_text('{"text": "a"}\n')
    assert {"corpus/my_text_document.json", "corpus/my_quarantine.jsonl"} < set(paths.expand_patterns(["corpus"]))


def test_a_directory_of_outputs_alone(corpus: Path) -> None:
    Path("made").mkdir()
    Path("made/web_text_document.json").write_text(
        '{\n  "v": 3,\n  "dataset": {\n    "prefix": "/made/web_text_document"\n  }\n}\n'
    )
    with pytest.raises(NoInput, match=r"made/web_text_document.json: an output of lt-preprocess, and there is no other input"):
        paths.expand_patterns(["made"])


@pytest.mark.parametrize("name", ["a.jsonl.lzo", "a.json.gz.zip", "a.txt.br", "a.PARQUET.ZIP"])
def test_documents_in_a_compression_that_is_not_read_are_not_left_out(corpus: Path, name: str) -> None:
    Path("corpus", name).touch()
    with pytest.raises(BadData, match=f"corpus/{name}: cannot be read"):
        paths.expand_patterns(["corpus"])
    assert paths.expand_patterns(["corpus/a.jsonl"]) == ["corpus/a.jsonl"]


def test_a_directory_behind_a_link_that_is_gone(corpus: Path) -> None:
    Path("corpus/LICENSE.md").symlink_to("nowhere")
    assert paths.expand_patterns(["corpus"]) == BELOW
    for name in ("more", "dolma.v1"):
        Path("corpus", name).symlink_to("nowhere")
        with pytest.raises(NoInput, match=f"corpus/{name}: a link to nothing"):
            paths.expand_patterns(["corpus"])
        Path("corpus", name).unlink()


def test_documents_behind_a_link_that_leads_upwards_are_not_left_out(corpus: Path, tmp_path: Path) -> None:
    """Unless the command names the directory that the link leads to as well."""
    Path("corpus/up").symlink_to("..")
    with pytest.raises(BadData, match=f"corpus/up: leads upwards, to {tmp_path}: documents behind it are not read"):
        paths.expand_patterns(["corpus"])
    Path("corpus/up").unlink()
    Path("corpus/loop").symlink_to(".")
    assert paths.expand_patterns(["corpus"]) == BELOW
    Path("beside").mkdir()
    Path("beside/d.jsonl").touch()
    Path("beside/up").symlink_to("../corpus")
    Path("corpus/loop").unlink()
    Path("corpus/beside").symlink_to("../beside")
    assert sorted(paths.expand_patterns(["corpus"])) == sorted([*BELOW, "corpus/beside/d.jsonl"])


def test_a_directory_behind_an_upward_link_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all/some").mkdir(parents=True)
    (tmp_path / "all/a.jsonl").touch()
    (tmp_path / "all/some/b.jsonl").touch()
    (tmp_path / "all/some/up").symlink_to("..")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match="all/some/up: leads upwards"):
        paths.expand_patterns(["all/some"])
    assert paths.expand_patterns(["all/some", "all/some/up/a.jsonl", "all"])[:2] == ["all/some/b.jsonl", "all/some/up/a.jsonl"]


def test_hidden_documents_are_told(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("corpus/.cache").mkdir()
    Path("corpus/.x.jsonl").touch()
    assert paths.expand_patterns(["corpus"]) == BELOW
    assert "not read because a dot begins their names: 4, such as corpus/.cache" in capsys.readouterr().err


def test_a_pattern_does_not_pass_over_what_cannot_be_read(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the answer of the system is replaced."""
    Path("corpus/closed").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.basename(path) != "closed" and access(path, mode))
    for pattern in ("corpus/*/*.jsonl", "corpus/**/*.jsonl", "corpus/closed/*", "cor*/closed/*"):
        with pytest.raises(NoInput, match="corpus/closed: permission denied"):
            paths.expand_patterns([pattern])
    assert paths.expand_patterns(["corpus/*.jsonl"]) == ["corpus/a.jsonl"]


def test_names_with_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "a\nb.jsonl").touch()
    assert paths.expand_patterns([str(tmp_path)]) == [f"{tmp_path}/a\nb.jsonl"]
