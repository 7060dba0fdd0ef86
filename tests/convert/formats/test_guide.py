"""The guide's tables of sources: each row that is read names its tests here, and each row that is refused is tried."""

import re
from pathlib import Path

import pytest

from lt_convert.formats import location
from lt_convert.tensors.source_files import Files
from lt_shared.console import ToolError

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/guides/conversion.md"
HERE = Path(__file__).parent
# The beginning of a row, and a test of it in tests/convert/formats.
READ = {
    "directory with `latest_checkpointed_iteration.txt`": "test_location.py::test_run_directory_means_its_tracked_checkpoint",
    "directory with `.metadata`, `.distcp` files and": "megatron/test_torch_dist.py::test_",
    "directory with `.metadata` and `.distcp` files alone": "megatron/test_fsdp.py::test_",
    "directory of a torch_dist checkpoint with `run_config": "megatron/test_provider_families.py::test_is_converted_as_our_own",
    "directory with `weights/` and `context/`": "megatron/test_provider_config.py::test_",
    "directory with `mp_rank_*` directories": "megatron/test_legacy.py::test_",
    "directory with `step-*` directories": "torchtitan/test_torch_checkpointing.py::test_formats_in_one_run",
    "directory with `step*` directories of OLMo-core": "test_olmo_core.py::test_models_of_transformers",
    "directory with `config.json`": "huggingface/test_safetensors_files.py::test_slices_of_ranks",
    "the same with `pytorch_model.bin`": "huggingface/test_torch_weights.py::test_one_file",
    "the same with `model.fp16.safetensors`": "huggingface/test_safetensors_files.py::test_shards_of_a_variant",
    "directory with `params.json` and `consolidated.00.pth`": "huggingface/test_consolidated.py::test_files_of_meta",
    "directory with `params.json` and `consolidated.safetensors`": "huggingface/test_consolidated.py::test_files_of_mistral",
    "`original/` of OpenAI's gpt-oss": "huggingface/test_openai_original.py::test_",
    "`-`, `@FILE`": "test_location.py::test_last_checkpoint_of_a_manifest",
    "`s3://...`": "../engine/test_remote.py::test_",
}


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without its head."""
    lines = GUIDE.read_text().split(f"\n## {heading}\n")[1].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table[2:]


def test_each_row_that_is_read_has_its_tests() -> None:
    sources = [row[0] for row in rows("From and to each format")]
    matches = [[beginning for beginning in READ if source.startswith(beginning)] for source in sources]
    assert all(matches), [source for source, found in zip(sources, matches, strict=True) if not found]
    assert {beginning for found in matches for beginning in found} == set(READ)
    for test in READ.values():
        path, name = test.split("::")
        assert re.search(rf"^def {name}", (HERE / path).read_text(), re.MULTILINE), test


def refused() -> list[tuple[str, str]]:
    """Each file of the second table with the beginning of its description."""
    table = rows("Checkpoints that are not read")
    return [(name, kind.split(",")[0]) for files, kind, _ in table for name in re.findall("`([^`]+)`", files)]


@pytest.mark.parametrize(("name", "kind"), refused())
def test_each_row_that_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    place = tmp_path / "model"
    place.mkdir()
    if name.endswith("/"):
        (place / name).mkdir()
    else:
        (place / name).write_text("{}")
    (place / "config.json").write_text("{}")
    with Files() as files, pytest.raises(ToolError) as error:
        location.locate(str(place), files)
    assert kind in str(error.value)
    assert error.value.hint
