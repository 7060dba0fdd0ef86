"""What lies beside the weights of a Hugging Face model goes through every format and back, or its loss is told."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats import FORMATS, known_files

CARRIED = {
    "README.md": "a card",
    "LICENSE": "a licence",
    "NOTICE.txt": "a notice",
    "preprocessor_config.json": '{"size": 3}',
    "processor_config.json": "{}",
    "video_preprocessor_config.json": "{}",
    "generation_config.json": '{"eos_token_id": [1, 0], "temperature": 0.6, "do_sample":true}',
    "chat_template.jinja": "{{ 'one' }}",
    "additional_chat_templates/tool.jinja": "{{ 'two' }}",
    "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "b"}',
    "special_tokens_map.json": '{"eos_token": "b"}',
    "added_tokens.json": "{}",
    "vocab.json": '{"a": 0, "b": 1}',
    "merges.txt": "#version: 0.2\n",
}
NOT_CARRIED = ("modeling_x.py", "training_args.bin", "runs")
IDS = {"bos_token_id": 1, "eos_token_id": [0, 1], "pad_token_id": None}


@pytest.fixture
def model(models: dict[str, Path], tmp_path: Path) -> Path:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    for name, content in CARRIED.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)
    set_ids(place, IDS)
    tokenizer().save(str(place / "tokenizer.json"))
    for name in NOT_CARRIED:
        (place / name).write_text("")
    return place


def set_ids(place: Path, ids: dict[str, Any]) -> None:
    (place / "config.json").write_text(json.dumps(json.loads((place / "config.json").read_text()) | ids))


def tokenizer() -> Tokenizer:
    return Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))


def there_and_back(source: Path, form: str, tmp_path: Path) -> Path:
    conversion.convert(Request(str(source), form, str(tmp_path / form)))
    return Path(conversion.convert(Request(str(tmp_path / form), "hf", str(tmp_path / "back"))).path)


@pytest.mark.parametrize("form", ["megatron-dist", "megatron-legacy", "torchtitan"])
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_files_come_back_byte_for_byte(
    form: str, has_tokenizer: bool, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carried = dict(CARRIED)
    if not has_tokenizer:
        for name in ("tokenizer.json", "vocab.json", "merges.txt"):
            (model / name).unlink()
            carried.pop(name, None)
        (model / "spiece.model.old").write_text("")
    back = there_and_back(model, form, tmp_path)
    for name in (*carried, *(["tokenizer.json"] if has_tokenizer else [])):
        assert (back / name).read_bytes() == (model / name).read_bytes(), name
    names = sorted([*NOT_CARRIED, *([] if has_tokenizer else ["spiece.model.old"])])
    assert f"not taken along: {', '.join(names)} ({len(names)} in all)" in capsys.readouterr().err
    config = json.loads((back / "config.json").read_text())
    assert {name: config[name] for name in IDS} == IDS
    assert not any((back / name).exists() for name in NOT_CARRIED)
    if has_tokenizer:
        assert AutoTokenizer.from_pretrained(back).get_chat_template() == "{{ 'one' }}"


@pytest.mark.parametrize("form", ["megatron-dist", "megatron-legacy", "torchtitan"])
def test_ids_of_special_tokens_without_a_tokenizer(form: str, models: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    ids = {"bos_token_id": 5, "eos_token_id": [6, 7], "pad_token_id": 8}
    set_ids(place, ids)
    config = json.loads((there_and_back(place, form, tmp_path) / "config.json").read_text())
    assert {name: config[name] for name in ids} == ids


def test_a_file_that_no_format_knows_is_told(models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("megatron-dist", "torchtitan"):
        run = tmp_path / form
        conversion.convert(Request(str(models["grouped"]), form, str(run)))
        place = run / "release" if form == "megatron-dist" else run
        (place / "notes.txt").write_text("")
        conversion.convert(Request(str(run), "hf", str(tmp_path / f"{form}-hf")))
        assert "not taken along: notes.txt (1 in all)" in capsys.readouterr().err


def test_ids_of_another_tokenizer_do_not_count(model: Path, tmp_path: Path) -> None:
    conversion.convert(Request(str(model), "torchtitan", str(tmp_path / "run")))
    Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a")).save(str(tmp_path / "run/tokenizer/tokenizer.json"))
    record = json.loads((tmp_path / "run/run.json").read_text()) | {"tokenizer": None}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    back = Path(conversion.convert(Request(str(tmp_path / "run"), "hf", str(tmp_path / "back"), verify=False)).path)
    assert json.loads((back / "config.json").read_text())["bos_token_id"] is None


def test_files_in_the_directories_of_a_run_are_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversion.convert(Request(str(model), "megatron-dist", str(tmp_path / "run")))
    for name in ("tokenizer/notes.txt", "huggingface/notes.txt", "huggingface/additional_chat_templates/old.txt"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("")
    (tmp_path / "run/release/dataloader_state").mkdir()
    capsys.readouterr()
    conversion.convert(Request(str(tmp_path / "run"), "hf", str(tmp_path / "back")))
    told = capsys.readouterr().err
    assert (
        "not taken along: tokenizer/notes.txt, huggingface/notes.txt, huggingface/additional_chat_templates/old.txt (3 in all)"
        in told
    )
    assert "left out files of training state: dataloader_state" in told


def test_the_guide_has_the_table_of_known_files() -> None:
    lines = (Path(__file__).parents[3] / "docs/guides/conversion.md").read_text().splitlines()
    formats = dict.fromkeys(one.known_files for one in FORMATS.values())
    for rows in formats:
        names = ", ".join(f"`{one.name}`" for one in FORMATS.values() if one.known_files == rows)
        for row in rows:
            assert f"| {names} | {row.shown} | {row.fate.value} |" in lines or row in known_files.CARRIED
    for row in known_files.CARRIED:
        assert f"| `hf` | {row.shown} | {row.fate.value} |" in lines
    assert f"| all | {known_files.TRACES.shown} | {known_files.TRACES.fate.value} |" in lines


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "LICENSE.txt", "Third_Party_Notices.md", "tokenizer.model.v3", "Readme.md"]
)
def test_files_that_published_models_have_are_carried(name: str) -> None:
    assert known_files.is_carried(name)
