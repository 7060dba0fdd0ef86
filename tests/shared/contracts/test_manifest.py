"""Manifests survive the trip through a pipe, and what was cut off or malformed is refused with its place."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.console import BadData, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Checkpoint, Dataset, Entry, Tokenizer

END = '{"v":1,"kind":"end","count":%d}'
A = '{"v":1,"kind":"dataset","prefix":"/data/a"}'
B = '{"v":1,"kind":"checkpoint","path":"/run/iter_0000010","format":"megatron-dist"}'

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
counts = st.none() | st.integers(0)
datasets = st.builds(
    Dataset,
    prefix=texts,
    documents=counts,
    tokens=counts,
    dtype=st.none() | st.sampled_from(["uint16", "int32"]),
    vocab_size=counts,
    eod=counts,
    tokenizer=st.none() | st.builds(Tokenizer, name=texts, sha256=texts, path=st.none() | texts),
    weight=st.floats(0, exclude_min=True, allow_infinity=False),
)
checkpoints = st.builds(
    Checkpoint, path=texts, format=st.sampled_from(["megatron-dist", "hf"]), iteration=counts, loss=st.none() | st.floats(0, 20)
)


def written(entries: list[Entry], plain: bool = False) -> str:
    """What a producer prints, through the real stdout machinery."""
    stdout = sys.stdout
    sys.stdout = io.StringIO()
    try:
        writer = manifest.Writer(plain)
        for entry in entries:
            writer.write(entry)
        writer.end()
        return sys.stdout.getvalue()
    finally:
        sys.stdout = stdout


@given(entries=st.lists(datasets | checkpoints, min_size=1, max_size=4))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    text = written(entries)
    file = tmp_path_factory.mktemp("manifest") / "m.jsonl"
    file.write_text(text, encoding="utf-8", newline="\n")
    assert manifest.read([f"@{file}"]) == entries
    assert manifest.parse(io.StringIO(text, newline="\n"), "pipe") == entries


def test_lines_are_the_documented_ones() -> None:
    tokenizer = Tokenizer("gpt2", "abc")
    dataset = Dataset("/fsx/web", documents=2, tokens=30, dtype="uint16", vocab_size=50257, eod=50256, tokenizer=tokenizer)
    lines = written([dataset, Checkpoint("/run/iter_0001000", "megatron-dist", 1000, 2.13)]).splitlines()
    assert lines == [
        '{"v":1,"kind":"dataset","prefix":"/fsx/web","documents":2,"tokens":30,"dtype":"uint16","vocab_size":50257,"eod":50256,'
        '"tokenizer":{"name":"gpt2","sha256":"abc"},"weight":1.0}',
        '{"v":1,"kind":"checkpoint","path":"/run/iter_0001000","format":"megatron-dist","iteration":1000,"loss":2.13}',
        '{"v":1,"kind":"end","count":2}',
    ]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stays_out_of_the_json(loss: float) -> None:
    first = written([Checkpoint("/run", "megatron-dist", 1, loss)]).splitlines()[0]
    assert json.loads(first, parse_constant=pytest.fail) == {
        "v": 1,
        "kind": "checkpoint",
        "path": "/run",
        "format": "megatron-dist",
        "iteration": 1,
    }


def test_plain_output_is_bare_and_reads_back() -> None:
    entries: list[Entry] = [Dataset("/data/a", tokens=3), Checkpoint("/run/iter_0000010", "hf")]
    assert written(entries, plain=True) == "/data/a\n/run/iter_0000010\n"
    assert manifest.parse(written(entries[:1], plain=True).splitlines(), "pipe") == [Dataset("/data/a")]


@pytest.mark.parametrize("lines", [[], ["", "  "], [END % 0]], ids=["nothing", "blank lines", "end alone"])
def test_an_empty_manifest_is_no_input(lines: list[str]) -> None:
    with pytest.raises(NoInput, match="standard input: the manifest is empty"):
        manifest.parse(lines, "standard input")


@pytest.mark.parametrize("lines", [[A], [A, B], [A, END % 1, B]])
def test_a_manifest_without_its_end_was_cut_off(lines: list[str]) -> None:
    with pytest.raises(NoInput, match="no end line"):
        manifest.parse(lines, "pipe")


def test_an_end_line_that_counts_more_entries_means_a_loss() -> None:
    with pytest.raises(NoInput, match="1 entries, but its end line says 2"):
        manifest.parse([A, END % 2], "pipe")


def test_several_manifests_in_one_stream() -> None:
    assert len(manifest.parse([A, END % 1, A, B, END % 2], "cat")) == 3
    with pytest.raises(NoInput, match="1 entries, but its end line says 2"):
        manifest.parse([A, B, END % 2, A, END % 2], "cat")


def test_bare_lines_and_weights() -> None:
    assert manifest.parse(["/data/a", "0.3 /data/b 0.7 /data/c"], "file") == [
        Dataset("/data/a"),
        Dataset("/data/b", weight=0.3),
        Dataset("/data/c", weight=0.7),
    ]
    assert manifest.read(["0.3", "/data/b", "/data/c"]) == [Dataset("/data/b", weight=0.3), Dataset("/data/c")]
    assert manifest.read(["0.3 /data/b 0.7 /data/c"]) == manifest.read(["0.3", "/data/b", "0.7", "/data/c"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0", "/a"], "weight 0 is not positive"),
        (["-1", "/a"], "weight -1 is not positive"),
        (["nan", "/a"], "weight nan is not positive"),
        (["inf", "/a"], "weight inf is not positive"),
        (["/a", "0.5"], "weight 0.5 is not followed by a prefix"),
    ],
)
def test_bad_weights(words: list[str], message: str) -> None:
    with pytest.raises(BadData, match=f"arguments: {message}"):
        manifest.read(words)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"v":1,"kind":"data', "not JSON"),
        ('{"v":1}', "no kind"),
        ('{"v":2,"kind":"dataset","prefix":"a"}', "manifest version 2"),
        ('{"kind":"dataset","prefix":"a"}', "manifest version None"),
        ('{"v":1,"kind":"picture"}', "unknown kind 'picture'"),
        ('{"v":1,"kind":"dataset"}', "dataset line without 'prefix'"),
        ('{"v":1,"kind":"dataset","prefix":5}', "prefix is 5"),
        ('{"v":1,"kind":"dataset","prefix":""}', "prefix is ''"),
        ('{"v":1,"kind":"dataset","prefix":"a","weight":0}', "weight 0 is not positive"),
        ('{"v":1,"kind":"dataset","prefix":"a","weight":NaN}', "weight nan is not positive"),
        ('{"v":1,"kind":"dataset","prefix":"a","weight":"1"}', "malformed dataset line"),
        ('{"v":1,"kind":"dataset","prefix":"a","tokenizer":{"name":"x"}}', "dataset line without 'sha256'"),
        ('{"v":1,"kind":"dataset","prefix":"a","tokenizer":"x"}', "malformed dataset line"),
        ('{"v":1,"kind":"dataset","prefix":"a","tokenizer":5}', "malformed dataset line: tokenizer is 5"),
        ('{"v":1,"kind":"dataset","prefix":"a","tokenizer":{"name":1,"sha256":"x"}}', "malformed dataset line: name is 1"),
        ('{"v":1,"kind":"dataset","prefix":"a","dtype":5}', "malformed dataset line: dtype is 5"),
        ('{"v":1,"kind":"dataset","prefix":"a","eod":true}', "malformed dataset line: eod is True"),
        ('{"v":1,"kind":"checkpoint","path":"a"}', "checkpoint line without 'format'"),
        ("0.5", "weight 0.5 is not followed"),
    ],
)
def test_malformed_lines_are_named_by_file_and_number(line: str, message: str) -> None:
    with pytest.raises(BadData, match=rf"data\.jsonl, line 3: .*{message}"):
        manifest.parse([A, "", line], "data.jsonl")


def test_unknown_fields_are_left_out() -> None:
    line = '{"v":1,"kind":"dataset","prefix":"/a","later":1}'
    assert manifest.parse([line, END % 1], "pipe") == [Dataset("/a")]


def test_a_file_is_read_line_by_line_whatever_the_text_holds(tmp_path: Path) -> None:
    """str.splitlines would also split at these, which JSON leaves unescaped."""
    entry = Dataset("/data/line\u2028separator\x85next")
    (tmp_path / "m").write_text(written([entry]), encoding="utf-8")
    assert manifest.read([f"@{tmp_path}/m"]) == [entry]


def test_a_missing_file_is_no_input(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="none: no such file"):
        manifest.read([f"@{tmp_path}/none"])


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{A}\n{END % 1}\n"))
    assert manifest.read(["-", "2", "/data/b"]) == [Dataset("/data/a"), Dataset("/data/b", weight=2.0)]


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK"])
def test_a_rank_refuses_standard_input(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "0")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{A}\n{END % 1}\n"))
    with pytest.raises(UsageError, match=variable) as caught:
        manifest.read(["-"])
    assert caught.value.hint is not None and "@FILE" in caught.value.hint
    assert manifest.read(["/data/a"]) == [Dataset("/data/a")]


def test_names_that_are_no_utf8_pass_through_a_pipe(tmp_path: Path) -> None:
    """The file that the reader opens is the one that the writer made."""
    producer = """
import click, os, sys
from lt_shared import console
from lt_shared.contracts import manifest
@click.command(cls=console.Command)
def command():
    writer = manifest.Writer()
    writer.write(manifest.Dataset(os.fsdecode(b"/data/\\xff\\xea\\xb0\\x80")))
    writer.end()
console.run(command, "lt-x")
"""
    consumer = """
import click, os
from lt_shared import console
from lt_shared.contracts import manifest
@click.command(cls=console.Command)
@click.argument("source")
def command(source):
    assert [os.fsencode(e.prefix) for e in manifest.read([source])] == [b"/data/\\xff\\xea\\xb0\\x80"]
console.run(command, "lt-x")
"""
    for locale in ("C", "C.UTF-8"):
        environment = os.environ | {"LC_ALL": locale}
        made = subprocess.run([sys.executable, "-c", producer], env=environment, capture_output=True, check=True).stdout
        (tmp_path / "m").write_bytes(made)
        subprocess.run([sys.executable, "-c", consumer, "-"], env=environment, input=made, check=True)
        subprocess.run([sys.executable, "-c", consumer, f"@{tmp_path}/m"], env=environment, check=True)


def test_a_bare_prefix_carries_what_its_sidecar_says(tmp_path: Path) -> None:
    prefix = str(tmp_path / "data")
    entry = Dataset("/elsewhere/data", tokens=7, tokenizer=Tokenizer("gpt2", "abc"))
    sidecar = Path(manifest.sidecar_path(prefix))
    sidecar.write_text(json.dumps({"dataset": manifest.record_of(entry)}))
    assert manifest.read(["2", prefix]) == [Dataset(prefix, tokens=7, tokenizer=Tokenizer("gpt2", "abc"), weight=2.0)]
    for broken in ("", "[]", "{}", '{"dataset":null}', '{"dataset":{}}', '{"dataset":{"prefix":"x","weight":-1}}'):
        sidecar.write_text(broken)
        with pytest.raises(BadData, match=str(sidecar)):
            manifest.read([prefix])


@pytest.mark.parametrize(
    ("version", "is_read"), [(None, True), (1, True), (manifest.SIDECAR_VERSION, True), (3, False), ("2", False)]
)
def test_a_sidecar_of_a_newer_version_is_refused(tmp_path: Path, version: object, is_read: bool) -> None:
    prefix = str(tmp_path / "data")
    record = {"dataset": {"prefix": prefix, "tokens": 7}} | ({} if version is None else {"v": version})
    Path(manifest.sidecar_path(prefix)).write_text(json.dumps(record))
    if is_read:
        assert manifest.describe(prefix).tokens == 7
    else:
        with pytest.raises(BadData, match=f"version {version}, known is 2"):
            manifest.describe(prefix)


def test_filters_by_kind_name_the_source() -> None:
    entries = manifest.parse([A, B, END % 2], "pipe")
    assert manifest.datasets(entries, "pipe") == [Dataset("/data/a")]
    assert manifest.checkpoints(entries, "pipe") == [Checkpoint("/run/iter_0000010", "megatron-dist")]
    with pytest.raises(NoInput, match="pipe: no checkpoint"):
        manifest.checkpoints(entries[:1], "pipe")
    with pytest.raises(NoInput, match="pipe: no dataset"):
        manifest.datasets(entries[1:], "pipe")


def test_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert manifest.absolute("data/web") == str(tmp_path / "data/web")
    assert manifest.absolute(Path("web")) == str(tmp_path / "web")
    assert manifest.absolute("s3://bucket/web") == "s3://bucket/web"


def test_paths_with_spaces_that_exist_are_one_word(tmp_path: Path) -> None:
    prefix = tmp_path / "my data" / "web text"
    prefix.parent.mkdir()
    Path(f"{prefix}.idx").touch()
    (first,) = manifest.datasets(manifest.parse([f"{prefix}"], "test"), "test")
    (second,) = manifest.datasets(manifest.parse([f"0.3 {prefix}"], "test"), "test")
    assert (first.prefix, second.prefix, second.weight) == (str(prefix), str(prefix), 0.3)


def test_numbers_of_another_type_are_refused() -> None:
    with pytest.raises(BadData, match="vocab_size"):
        manifest.parse(['{"v":1,"kind":"dataset","prefix":"x","vocab_size":"abc"}'], "test")


def write_sidecar(prefix: str, **fields: object) -> None:
    record = {"v": manifest.SIDECAR_VERSION, "dataset": manifest.record_of(Dataset(prefix))} | fields
    Path(manifest.sidecar_path(prefix)).write_text(json.dumps(record))


def test_checksums_are_optional(tmp_path: Path) -> None:
    """Sidecars of older versions have none, datasets of other tools have no sidecar."""
    prefix = str(tmp_path / "a")
    assert manifest.recorded_checksums(prefix) is None
    write_sidecar(prefix)
    assert manifest.recorded_checksums(prefix) is None
    write_sidecar(prefix, crc32={"bin": [10, 2**32 - 1], "idx": [50, 0]})
    assert manifest.recorded_checksums(prefix) == {"bin": (10, 2**32 - 1), "idx": (50, 0)}


@pytest.mark.parametrize(
    "crc32",
    [5, [], {}, {"bin": [1, 2]}, {"bin": [1, 2], "idx": 3}, {"bin": [1, 2], "idx": [1, -2]}, {"bin": [1], "idx": [True, 1]}],
)
def test_malformed_checksums(tmp_path: Path, crc32: object) -> None:
    prefix = str(tmp_path / "a")
    write_sidecar(prefix, crc32=crc32)
    with pytest.raises(BadData, match=r"a\.json: malformed checksums"):
        manifest.recorded_checksums(prefix)


def test_no_line_and_no_sidecar_has_two_meanings(tmp_path: Path) -> None:
    """Parsers differ in which of two values they take."""
    prefix = str(tmp_path / "a")
    Path(manifest.sidecar_path(prefix)).write_text('{"dataset": {"prefix": "a", "tokens": 1, "tokens": 2}}')
    with pytest.raises(BadData, match="'tokens' twice"):
        manifest.describe(prefix)
    with pytest.raises(BadData, match="'prefix' twice"):
        manifest.parse([A.replace('"prefix"', '"prefix":"/data/b","prefix"'), END % 1], "lines")
    with pytest.raises(BadData, match="not JSON"):
        manifest.parse([A.replace('"/data/a"', "[" * 100_000), END % 1], "lines")


DATASET = {"v": 1, "kind": "dataset", "prefix": "/data/a"}
TOKENIZER = {"name": "gpt2", "sha256": "abc"}


def refusal(record: dict[str, object]) -> str:
    """What is said of a line."""
    with pytest.raises(BadData) as caught:
        manifest.parse([json.dumps(record)], "pipe")
    return str(caught.value).removeprefix("pipe, line 1: ")


@pytest.mark.parametrize("field", ["documents", "tokens", "vocab_size", "eod"])
@pytest.mark.parametrize("value", ["7", 7.0, True, False, [7]])
def test_counts_are_whole_numbers(field: str, value: object) -> None:
    said = refusal(DATASET | {field: value})
    assert said == f"malformed dataset line: {field} is {value!r}, expected a whole number"
    assert manifest.parse([json.dumps(DATASET | {field: None}), END % 1], "pipe") == [Dataset("/data/a")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefix": ["a"]}, "prefix is ['a']"),
        ({"dtype": ["uint16"]}, "dtype is ['uint16']"),
        ({"tokenizer": "gpt2"}, "tokenizer is 'gpt2', expected an object"),
        ({"tokenizer": TOKENIZER | {"name": ""}}, "name is ''"),
        ({"tokenizer": TOKENIZER | {"sha256": 5}}, "sha256 is 5"),
        ({"tokenizer": TOKENIZER | {"path": 5}}, "the tokenizer's path is 5"),
        ({"weight": math.inf}, "weight inf is not positive"),
        ({"weight": -0.0}, "weight -0.0 is not positive"),
    ],
)
def test_malformed_fields_of_a_dataset(fields: dict[str, object], message: str) -> None:
    assert refusal(DATASET | fields) == f"malformed dataset line: {message}"


@pytest.mark.parametrize("key", ["path", "format"])
def test_malformed_fields_of_a_checkpoint(key: str) -> None:
    record = json.loads(B)
    assert refusal(record | {key: ""}) == f"malformed checkpoint line: {key} is ''"
    assert refusal(record | {key: None}) == f"malformed checkpoint line: {key} is None"
    del record[key]
    assert refusal(record) == f"checkpoint line without '{key}'"


def test_unknown_fields_of_a_checkpoint_are_left_out() -> None:
    assert manifest.parse([json.dumps(json.loads(B) | {"later": 1}), END % 1], "pipe") == [
        Checkpoint("/run/iter_0000010", "megatron-dist")
    ]


def test_a_tokenizer_may_be_empty_or_without_a_path() -> None:
    lines = [json.dumps(DATASET | {"tokenizer": one}) for one in ({}, None, TOKENIZER, TOKENIZER | {"path": "/t"})]
    found = manifest.datasets(manifest.parse([*lines, END % 4], "pipe"), "pipe")
    assert [one.tokenizer for one in found] == [None, None, Tokenizer("gpt2", "abc"), Tokenizer("gpt2", "abc", "/t")]


def test_end_lines_count_since_the_one_before() -> None:
    """Those without a count, as a shell script may write them, only end."""
    bare_end = '{"v":1,"kind":"end"}'
    assert len(manifest.parse([A, bare_end, A, A, END % 2, END % 0], "pipe")) == 3
    for lines, count, said in (([END % 0, A, END % 2], 1, 2), ([A, A, END % 1], 2, 1), ([A, bare_end, A, END % 2], 1, 2)):
        with pytest.raises(NoInput) as caught:
            manifest.parse(lines, "pipe")
        assert str(caught.value) == f"pipe: {count} entries, but its end line says {said}"


def test_what_to_do_about_a_manifest_that_is_not_whole() -> None:
    with pytest.raises(NoInput) as caught:
        manifest.parse([A], "pipe")
    assert str(caught.value) == "pipe: the manifest has no end line"
    assert caught.value.hint == "its producer failed or was cut off; see its messages"
    with pytest.raises(NoInput) as caught:
        manifest.parse([], "pipe")
    assert caught.value.hint == "the command before the pipe failed, or wrote nothing"


def test_bare_lines_between_those_of_json() -> None:
    """As `cat` of two files gives them; bare lines need no end."""
    found = manifest.parse(["/data/x", A, "", "2 /data/y", END % 1, "/data/z"], "pipe")
    assert [(one.prefix, one.weight) for one in manifest.datasets(found, "pipe")] == [
        ("/data/x", 1.0),
        ("/data/a", 1.0),
        ("/data/y", 2.0),
        ("/data/z", 1.0),
    ]


def test_each_source_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").write_text("{\n")
    with pytest.raises(BadData, match=f"^{tmp_path}/m, line 1: not JSON: "):
        manifest.read([f"@{tmp_path}/m"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("{\n"))
    with pytest.raises(BadData, match=r"^standard input, line 1: not JSON: "):
        manifest.read(["-"])
    with pytest.raises(BadData, match=r"^arguments: weight -2 is not positive$"):
        manifest.read(["/data/a", "-2", "/data/b"])
    with pytest.raises(BadData, match=r"^arguments: weight 2.5 is not followed by a prefix$"):
        manifest.read(["/data/a", "2.5"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_terminal_is_told_what_is_waited_for(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", kind(f"{A}\n{END % 1}\n"))
    assert len(manifest.read(["-"])) == 1
    assert ("waiting for a manifest on standard input" in capsys.readouterr().err) == (kind is Terminal)


def test_a_plain_line_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command in the pipe begins with the first dataset."""
    passed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(passed), write_through=False))  # type: ignore[type-var]
    writer = manifest.Writer(plain=True)
    writer.write(Dataset("/data/a"))
    assert passed.getvalue() == b"/data/a\n"


def test_a_weight_may_have_the_name_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("0.5 a.idx").touch()
    Path("b c").touch()
    Path("0.25").touch()
    found = manifest.datasets(manifest.parse(["0.5 a", "0.5 b c", "0.25 d", "e f"], "file"), "file")
    assert [(one.prefix, one.weight) for one in found] == [
        ("0.5 a", 1.0),
        ("b c", 0.5),
        ("d", 0.25),
        ("e", 1.0),
        ("f", 1.0),
    ]


def test_an_empty_line_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the dataset whose prefix is empty."""
    monkeypatch.chdir(tmp_path)
    Path(".idx").touch()
    assert manifest.parse(["", "/data/a", "  "], "file") == [Dataset("/data/a")]


def test_output_is_json_unless_it_is_to_be_plain(capsys: pytest.CaptureFixture[str]) -> None:
    manifest.Writer().write(Dataset("/data/a"))
    assert capsys.readouterr().out == '{"v":1,"kind":"dataset","prefix":"/data/a","weight":1.0}\n'


def test_a_number_after_a_weight_is_a_prefix() -> None:
    assert manifest.read(["2", "3", "/data/a"]) == [Dataset("3", weight=2.0), Dataset("/data/a")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a dataset description: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "not a dataset description: not an object"),
        ("{}", "not a dataset description: 'dataset'"),
        ('{"dataset": [1]}', "not a dataset description: it is [1], expected an object"),
        ('{"dataset": {}}', "not a dataset description: 'prefix'"),
        ('{"crc32": 5, "dataset": {"prefix": "a"}}', "malformed checksums: 'int' object is not subscriptable"),
        ('{"crc32": {"bin": [1, 2]}, "dataset": {"prefix": "a"}}', "malformed checksums: 'idx'"),
        (
            '{"crc32": {"bin": [1, 2], "idx": [1, 2.0]}, "dataset": {"prefix": "a"}}',
            "malformed checksums: sizes and checksums are whole numbers",
        ),
    ],
)
def test_a_sidecar_that_is_none(content: str, message: str, tmp_path: Path) -> None:
    prefix = str(tmp_path / "data")
    Path(manifest.sidecar_path(prefix)).write_text(content)
    with pytest.raises(BadData) as caught:
        (manifest.recorded_checksums if "crc32" in content else manifest.describe)(prefix)
    assert str(caught.value) == f"{prefix}.json: {message}"
    assert caught.value.hint == "delete it to use the prefix without one"


def test_a_newer_sidecar(tmp_path: Path) -> None:
    prefix = str(tmp_path / "data")
    Path(f"{prefix}.json").write_text('{"v": 3, "dataset": {"prefix": "a"}}')
    with pytest.raises(BadData) as caught:
        manifest.read_sidecar(prefix)
    assert str(caught.value) == f"{prefix}.json: version 3, known is 2"
    assert caught.value.hint == "it was written by a newer lt-preprocess: update"
    assert manifest.read_sidecar(str(tmp_path / "none")) is None
    Path(f"{prefix}.json").write_text('{"v": 2, "dataset": {"prefix": "a"}}')
    assert manifest.read_sidecar(prefix) == {"v": 2, "dataset": {"prefix": "a"}}
    assert manifest.describe(prefix) == Dataset(prefix)


def test_names_of_files_that_are_no_text(tmp_path: Path) -> None:
    """As a shell writes them: any byte but a slash and a line feed may be in a name."""
    (tmp_path / "m").write_bytes(b"/data/\xff\xea\n")
    assert [os.fsencode(one.prefix) for one in manifest.datasets(manifest.read([f"@{tmp_path}/m"]), "m")] == [b"/data/\xff\xea"]
