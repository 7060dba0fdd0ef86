"""What lies at lt-convert's destination: checkpoints are replaced when asked for, and a thesis beside them never."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from convert_models import content, run, run_here, write_model
from hypothesis import given
from hypothesis import strategies as st
from s3_server import names, upload
from stranger import STRANGER_UID, Stranger

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.engine import occupancy
from lt_convert.formats.checkpoint import LegacyTarget

pytestmark = pytest.mark.usefixtures("unsynced")
JOURNAL = ".lt-convert.journal"
FORMATS = ("hf", "megatron-dist", "megatron-legacy", "torchtitan")
FOREIGN = {
    "thesis": "thesis.tex",
    "notes": "notes/2026.md",
    "hidden": ".git/config",
    "beside the tensors": "release/thesis.tex",
    "looks nearly so": "model.safetensors.bak",
    "a training run's log": "metrics.jsonl",
    "deep": "tokenizer/a/b/c",
    "data": "data.bin",
}
HUB = ("README.md", ".gitattributes", "LICENSE", "LICENSE-MODEL", "NOTICE.txt", "USE_POLICY.md", "chat_template.jinja",
       "generation_config.json", ".cache/huggingface/.gitignore",
       ".cache/huggingface/download/model.safetensors.metadata")  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("occupied")
    write_model(root / "model", tokenizer=True)
    for name in FORMATS[1:]:
        target = LegacyTarget(2, 2) if name == "megatron-legacy" else LegacyTarget()
        conversion.convert(Request(str(root / "model"), name, str(root / name), legacy_target=target))
    conversion.convert(Request(str(root / "torchtitan"), "hf", str(root / "hf")))
    conversion.convert(Request(str(write_model(root / "other", seed=1)), "torchtitan", str(root / "expected")))
    return {path.name: path for path in root.iterdir()}


def everything(directory: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


def put(directory: Path, name: str) -> None:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("years of work")


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_checkpoint_is_never_deleted(name: str, foreign: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    out = shutil.copytree(checkpoints[name], tmp_path / "out")
    put(out, FOREIGN[foreign])
    before = everything(tmp_path)
    for force in ([], ["--force"]):
        result = run_here(checkpoints["other"], "--to", "torchtitan", "-o", out, *force)
        assert (result.returncode, result.stdout) == (73, ""), result.stderr
        assert everything(tmp_path) == before
    assert "nothing was deleted: move that elsewhere" in result.stderr
    assert FOREIGN[foreign].partition("/")[0] in result.stderr


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_force_replaces_every_format(name: str, recorded: bool, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    out = shutil.copytree(checkpoints[name], tmp_path / "out")
    if not recorded:
        (out / "lt-convert.json").unlink()
    for each in HUB:
        put(out, each)
    assert run_here(checkpoints["other"], "--to", "torchtitan", "-o", out).returncode == 73
    result = run_here(checkpoints["other"], "--to", "torchtitan", "-o", out, "--force")
    assert result.returncode == 0, result.stderr
    assert content(out) == content(checkpoints["expected"])


@pytest.mark.parametrize(
    "names",
    [
        ["README.md"], ["README.md", "config.json"], ["notes/"], ["tokenizer/vocab.json", "LICENSE"],
        ["metadata.json", "README.md"], ["run.json", "modeling_thesis.py"], ["checksums.json", "common.pt"],
        ["latest_checkpointed_iteration.txt", "iter_0000001/", "README.md"],
    ],
)  # fmt: skip
def test_a_directory_without_a_checkpoint_is_not_replaced(names: list[str], checkpoints: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in names:
        (out / name).mkdir(parents=True) if name.endswith("/") else put(out, name)
    before = everything(tmp_path)
    result = run_here(checkpoints["other"], "--to", "torchtitan", "-o", out, "--force")
    assert result.returncode == 73
    assert "holds no checkpoint, only" in result.stderr
    assert everything(tmp_path) == before


def test_links_are_replaced_and_what_they_lead_to_stays(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """As the Hub's cache has them. A link to a directory is none of a checkpoint's."""
    (tmp_path / "blobs").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    for path in checkpoints["hf"].iterdir():
        shutil.copy(path, tmp_path / "blobs")
        (out / path.name).symlink_to(tmp_path / "blobs" / path.name)
    before = everything(tmp_path / "blobs")
    (out / "notes").symlink_to(tmp_path / "blobs")
    result = run(checkpoints["other"], "--to", "torchtitan", "-o", out, "--force")
    assert (result.returncode, result.stdout) == (73, ""), result.stderr
    (out / "notes").unlink()
    assert run(checkpoints["other"], "--to", "torchtitan", "-o", out, "--force").returncode == 0
    assert everything(tmp_path / "blobs") == before


def test_what_somebody_adds_during_the_conversion_stays(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lt_convert.engine import output_writer
    from lt_shared.console import CannotCreate

    out = shutil.copytree(checkpoints["hf"], tmp_path / "out")
    true = output_writer.small_content

    def meanwhile(*arguments: Any) -> bytes:
        put(out, "thesis.tex")
        return true(*arguments)

    monkeypatch.setattr(output_writer, "small_content", meanwhile)
    with pytest.raises(CannotCreate, match=r"thesis\.tex"):
        conversion.convert(Request(str(checkpoints["other"]), "torchtitan", str(out), force=True))
    assert (out / "thesis.tex").exists()
    assert (out / "model.safetensors").exists()


@given(st.text(st.sampled_from("abcdefgmodel.-_/0123456789ptxsj"), min_size=1).filter(lambda name: "//" not in name))
def test_other_names_do_not_look_like_checkpoints(name: str) -> None:
    """Random names hardly ever are those of a checkpoint: patterns are not open at an end."""
    assert not occupancy.looks_like_checkpoint(f"{name}.tex")
    assert not occupancy.looks_like_checkpoint(f"thesis/{name}")
    for known in ("model.safetensors", "release/common.pt", "__0_0.distcp", "README.md"):
        assert not occupancy.looks_like_checkpoint(f"{known}{name}") or name[0] in "0123456789abcdefgmodel.-_/ptxsj"
        assert not occupancy.looks_like_checkpoint(f"my {known}")


# On a remote store, where nothing is renamed.


def journal(identity: str, *names: str) -> str:
    return json.dumps({"identity": identity, "names": names, "done": {}})


OCCUPIED: dict[str, dict[str, str]] = {
    "no checkpoint": {"thesis.tex": "x"},
    "a checkpoint": {"model.safetensors": "x", "config.json": "{}"},
    "a journal of another plan": {JOURNAL: journal("0"), "thesis.tex": "x"},
    "a journal that names it": {JOURNAL: journal("0", "thesis.tex"), "thesis.tex": "x"},
    "an old journal": {JOURNAL: '{"identity": "0", "done": {}}', "model.safetensors": "x", "thesis.tex": "x"},
    "a checkpoint that no journal names": {JOURNAL: journal("0", "__0_0.distcp"), "model.safetensors": "x"},
    "an empty journal": {JOURNAL: "", "model.safetensors": "x"},
    "a journal with two readings": {
        JOURNAL: '{"identity": "0", "done": {}, "names": [], "names": ["model.safetensors"]}', "model.safetensors": "x"
    },
    "an empty journal beside a thesis": {JOURNAL: "", "thesis.tex": "x"},
    "a journal beside a description": {JOURNAL: "", "README.md": "x", "config.json": "{}"},
    "a receipt of nothing": {"lt-convert.json": '{"v":1}', "README.md": "x"},
    "notes beside a model": {"model.safetensors": "x", "LICENSE-thesis.tex": "x"},
    "notes in the Hub's folder": {"model.safetensors": "x", ".cache/huggingface/thesis.tex": "x"},
    "a finished conversion": {
        JOURNAL: journal("0", "model.safetensors", "lt-convert.json"), "model.safetensors": "x", "lt-convert.json": '{"v":1}'
    },
}  # fmt: skip
WITH_FORCE = {"a checkpoint", "a checkpoint that no journal names", "an empty journal", "a journal with two readings",
              "a finished conversion"}  # fmt: skip


@pytest.mark.parametrize("case", OCCUPIED)
def test_an_occupied_prefix_is_refused(case: str, bucket: str, checkpoints: dict[str, Path]) -> None:
    import s3fs

    store = s3fs.S3FileSystem()
    for name, text in OCCUPIED[case].items():
        store.pipe_file(f"{bucket}/out/{name}", text.encode())
    result = run_here(checkpoints["other"], "--to", "torchtitan", "-o", f"{bucket}/out")
    assert (result.returncode, result.stdout) == (73, ""), result.stderr
    assert names(f"{bucket}/out") == set(OCCUPIED[case])
    forced = run_here(checkpoints["other"], "--to", "torchtitan", "-o", f"{bucket}/out", "--force")
    store.invalidate_cache()
    if case in WITH_FORCE:
        assert forced.returncode == 0, forced.stderr
        assert names(f"{bucket}/out") == {".metadata", "__0_0.distcp", "run.json", "checksums.json", "lt-convert.json"}
    else:
        assert (forced.returncode, forced.stdout) == (73, ""), forced.stderr
        assert "nothing was deleted" in forced.stderr
        assert {name: store.cat_file(f"{bucket}/out/{name}").decode() for name in OCCUPIED[case]} == OCCUPIED[case]


def test_an_unfinished_conversion_of_another_plan_is_replaced(bucket: str, checkpoints: dict[str, Path]) -> None:
    """Without --force: its own journal names every object."""
    import s3fs

    store = s3fs.S3FileSystem()
    objects = {"model.safetensors": "x", "generation_config.json": "{}"}
    for name, text in (objects | {JOURNAL: journal("0", *objects)}).items():
        store.pipe_file(f"{bucket}/out/{name}", text.encode())
    result = run_here(checkpoints["other"], "--to", "torchtitan", "-o", f"{bucket}/out")
    assert result.returncode == 0, result.stderr
    assert names(f"{bucket}/out") == {".metadata", "__0_0.distcp", "run.json", "checksums.json", "lt-convert.json"}


def test_the_journal_comes_first_and_names_all(
    bucket: str,
    checkpoints: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill between any two requests leaves what the same command takes up again, or replaces with --force."""
    import s3fs

    from lt_convert.engine import remote_writer

    url = f"{bucket}/out"
    upload(checkpoints["hf"], url)
    calls: list[str] = []

    def stop_after(count: int, true: Callable[..., Any]) -> Callable[..., Any]:
        def counting(path: str, *arguments: Any) -> Any:
            if len(calls) == count:
                raise KeyboardInterrupt
            calls.append(path)
            return true(path, *arguments)

        return counting

    request = Request(str(checkpoints["other"]), "torchtitan", url, force=True)
    for count in range(1, 40):
        calls.clear()
        with monkeypatch.context() as patch:
            for name in ("remove", "write_bytes"):
                patch.setattr(remote_writer.storage, name, stop_after(count, getattr(remote_writer.storage, name)))
            try:
                conversion.convert(request)
                break
            except KeyboardInterrupt:
                pass
        assert calls[0] == f"{url}/{JOURNAL}"
        store = s3fs.S3FileSystem()
        store.invalidate_cache()
        journal = json.loads(store.cat_file(f"{url}/{JOURNAL}"))
        assert names(url) - {JOURNAL} <= {*journal["names"]}
    assert names(url) == {".metadata", "__0_0.distcp", "run.json", "checksums.json", "lt-convert.json"}


@pytest.mark.parametrize("foreign", ["out", "out/model-00001-of-00002.safetensors", "out/tokenizer/vocab.json"])
def test_force_deletes_nothing_of_another_user(foreign: str, checkpoints: dict[str, Path], stranger: Stranger) -> None:
    """In a group directory he may have renamed a checkpoint of a third user to the name of the output."""
    source, out = checkpoints["other"], stranger.shared / "out"
    assert run_here(source, "--to", "megatron-dist", "-o", out).returncode == 0
    path = stranger.shared / foreign
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.chown(path, STRANGER_UID, STRANGER_UID)
    done = run_here(source, "--to", "torchtitan", "-o", out, "--force")
    assert (done.returncode, done.stdout) == (73, "")
    assert f"{path}: belongs to another user (uid {STRANGER_UID})" in done.stderr
    assert path.exists()
