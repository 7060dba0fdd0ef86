"""What lies beside the weights of a Hugging Face model goes through every format and back, or its loss is told."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request

CARRIED = {
    "README.md": "a card",
    "LICENSE": "a licence",
    "NOTICE.txt": "a notice",
    "preprocessor_config.json": '{"size": 3}',
    "processor_config.json": "{}",
    "generation_config.json": '{"temperature": 0.6}',
    "chat_template.jinja": "{{ 'one' }}",
    "additional_chat_templates/tool.jinja": "{{ 'two' }}",
    "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "b"}',
    "special_tokens_map.json": '{"eos_token": "b"}',
    "added_tokens.json": "{}",
    "vocab.json": '{"a": 0, "b": 1}',
    "merges.txt": "#version: 0.2\n",
}
NOT_CARRIED = ("modeling_x.py", "training_args.bin", "runs")


@pytest.fixture
def model(models: dict[str, Path], tmp_path: Path) -> Path:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    for name, content in CARRIED.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)
    tokenizer().save(str(place / "tokenizer.json"))
    for name in NOT_CARRIED:
        (place / name).write_text("")
    return place


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
        for name in ("tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"):
            (model / name).unlink()
            carried.pop(name, None)
        shutil.rmtree(model / "additional_chat_templates")
        (model / "tokenizer_config.json").unlink()
        del carried["tokenizer_config.json"], carried["additional_chat_templates/tool.jinja"]
    back = there_and_back(model, form, tmp_path)
    for name in (*carried, *(["tokenizer.json"] if has_tokenizer else [])):
        assert (back / name).read_bytes() == (model / name).read_bytes(), name
    assert f"not taken along: {', '.join(sorted(NOT_CARRIED))} (3 in all)" in capsys.readouterr().err
    assert not any((back / name).exists() for name in NOT_CARRIED)
    if has_tokenizer:
        assert AutoTokenizer.from_pretrained(back).get_chat_template() == "{{ 'one' }}"


@pytest.mark.parametrize("form", ["megatron-dist", "megatron-legacy", "torchtitan"])
def test_ids_of_special_tokens_without_a_tokenizer(form: str, models: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    ids = {"bos_token_id": 5, "eos_token_id": [6, 7], "pad_token_id": 8}
    (place / "config.json").write_text(json.dumps(json.loads((place / "config.json").read_text()) | ids))
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
