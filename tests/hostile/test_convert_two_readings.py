"""Files that two programs read differently: what lt-convert takes, transformers, torch and safetensors read as it does."""

import contextlib
import json
import os
import pickle
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import torch
from convert_models import TINY, write_model

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.containers import torch_archive
from lt_convert.formats import huggingface
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Chunk, Tensor
from lt_shared.console import BadConfig, BadData
from lt_shared.models import huggingface as configurations
from lt_shared.models.presets import PRESETS

VALUES = numpy.arange(6, dtype=numpy.float32)
MUTATIONS = 1000


# safetensors


def written(header: bytes, values: bytes = VALUES.tobytes()) -> bytes:
    return len(header).to_bytes(8, "little") + header + values


def entry(begin: Any, end: Any, shape: str = "[3]", dtype: str = '"F32"') -> str:
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":[{begin},{end}]}}'


A, B = f'"a":{entry(0, 12)}', f'"b":{entry(12, 24)}'
HEADERS = {
    "a name twice": f'{{{A},"a":{entry(12, 24)}}}',
    "a name twice, escaped": f'{{{A},"\\u0061":{entry(12, 24)}}}',
    "a field twice": f'{{{A},"b":{{"dtype":"F32","shape":[3],"data_offsets":[0,12],"data_offsets":[12,24]}}}}',
    "another field": f'{{{A},"b":{{"dtype":"F32","shape":[3],"data_offsets":[12,24],"strides":[4]}}}}',
    "an overlap": f'{{{A},"b":{entry(0, 12)}}}',
    "a hole": f'{{{A},"b":{entry(16, 24, "[2]")}}}',
    "swapped offsets": f'{{{A},"b":{entry(24, 12)}}}',
    "trailing bytes": f"{{{A}}}",
    "beyond the end": f'{{{A},"b":{entry(12, 28, "[4]")}}}',
    "a shape of fractions": f'{{{A},"b":{entry(12, 24, "[3.0]")}}}',
    "a shape of truth values": f'{{{A},"b":{entry(12, 24, "[3,true]")}}}',
    "negative sizes": f'{{{A},"b":{entry(12, 24, "[-3,-1]")}}}',
    "an exponent": f'{{{A},"b":{entry(12, "2.4e1")}}}',
    "a dtype of other bytes": f'{{{A},"b":{entry(12, 24, "[3]", chr(34) + "F64" + chr(34))}}}',
    "spaces before": f" {{{A},{B}}}",
    "a byte order mark": f"\ufeff{{{A},{B}}}",
    "more after it": f"{{{A},{B}}}{{}}",
    "zeros after it": f"{{{A},{B}}}\0\0",
    "metadata of numbers": f'{{"__metadata__":{{"format":1}},{A},{B}}}',
    "metadata that are none": f'{{"__metadata__":null,{A},{B}}}',
    "a lone surrogate": f'{{"\\ud800":{entry(0, 12)},{B}}}',
    "infinity": f'{{"__metadata__":{{"x":Infinity}},{A},{B}}}',
    "a list": "[]",
}


def ours(path: Path) -> dict[str, bytes] | None:
    """Every tensor's bytes, or None when the file is refused."""
    try:
        with Files() as files:
            return {
                name: blocks.read(tensor, files).tobytes() for name, tensor in huggingface.read_file(str(path), files).items()
            }
    except BadData:
        return None


def theirs(path: Path) -> dict[str, bytes]:
    with safetensors.safe_open(path, "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("case", HEADERS)
def test_headers_with_two_readings_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(written(HEADERS[case].encode("utf-8", "surrogatepass")))
    assert ours(path) is None


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig"):
        path.write_bytes(written(f"{{{A},{B}}}".encode(encoding)))
        assert ours(path) is None
    path.write_bytes(written(f"{{{A},{B}}}   ".encode()))
    assert ours(path) == theirs(path)


@pytest.mark.parametrize("length", [0, 7, 8, 100, 2**31, 2**63, 2**64 - 1])
def test_header_lengths_that_lie(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = f"{{{A},{B}}}".encode()
    path.write_bytes(struct.pack("<Q", length) + header + VALUES.tobytes())
    assert ours(path) is None


def test_whatever_safetensors_we_take_safetensors_reads_alike(tmp_path: Path) -> None:
    chance, path = random.Random(0), tmp_path / "a.safetensors"
    original = written(f'{{"__metadata__":{{"format":"pt"}},{A},{B}}}'.encode())
    taken = 0
    for changed in mutated(original, range(len(original) - VALUES.nbytes), chance):
        path.write_bytes(changed)
        found = ours(path)
        if found is not None:
            taken += 1
            assert theirs(path) == found, changed
    assert taken > 10


def mutated(data: bytes, positions: range, chance: random.Random) -> Iterator[bytes]:
    interesting = b'{}[],:"0123456789abFIU\\ \x00\xff\x01\x80PK'
    for _ in range(MUTATIONS):
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 2])):
            changed[chance.choice(positions)] = chance.choice(interesting)
        yield bytes(changed)


# Archives of torch.save


def archive(**more: Any) -> bytes:
    import io

    content = io.BytesIO()
    torch.save(torch.arange(100, dtype=torch.float32), content, **more)
    return content.getvalue()


def our_values(path: Path) -> bytes | None:
    try:
        with Files() as files:
            record, locate = torch_archive.read(str(path), 0, path.stat().st_size, files, "x")
            found = locate(record)
            chunk = Chunk(tuple(map(range, found.view.shape)), found.view)
            tensor = Tensor("x", found.dtype, found.view.shape, (chunk,), found.dtype)
            tensor.check_cover()
            return blocks.read(tensor, files).tobytes()
    except BadData:
        return None


def test_whatever_archive_we_take_torch_reads_alike(tmp_path: Path) -> None:
    """Mutations of everything but the values: directory, local headers, end records, pickle."""
    original, chance, path = archive(), random.Random(1), tmp_path / "a.pt"
    begin = original.index(torch.arange(100, dtype=torch.float32).numpy().tobytes())
    path.write_bytes(original)
    assert our_values(path) == torch.load(path).numpy().tobytes()
    taken = 0
    for positions in (range(begin), range(begin + 400, len(original)), range(len(original) - 200, len(original))):
        for changed in mutated(original, positions, chance):
            path.write_bytes(changed)
            found = our_values(path)
            if found is not None:
                taken += 1
                # torch also looks at the headers of members that hold nothing, and refuses the file for them.
                with contextlib.suppress(RuntimeError, ValueError, pickle.UnpicklingError):
                    assert torch.load(path).numpy().tobytes() == found
    assert taken > 10


def rebuilt(edit: Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]) -> bytes:
    """The archive's members written again by Python, which lets everything be chosen."""
    import io

    with zipfile.ZipFile(io.BytesIO(archive())) as before:
        members = [(info, before.read(info)) for info in before.infolist()]
    edit(members)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made, warnings_off():
        for info, data in members:
            clean = zipfile.ZipInfo(info.filename)
            clean.extra, clean.comment, clean.compress_type = info.extra, info.comment, info.compress_type
            clean.external_attr = info.external_attr
            made.writestr(clean, data)
    return content.getvalue()


def warnings_off() -> Any:
    """Python warns of names that are there twice."""
    return warnings.catch_warnings(action="ignore")


def renamed(members: list[tuple[zipfile.ZipInfo, bytes]], old: str, new: str) -> None:
    for info, _ in members:
        if info.filename == old:
            info.filename = new


def evil(data: bytes) -> bytes:
    """The same pickle with another size of the storage, or another tensor, as the second reading."""
    return data.replace(b"Kd", b"K2", 1)


def copied(members: list[tuple[zipfile.ZipInfo, bytes]], old: str, new: str, first: bool = False) -> None:
    data = next(data for info, data in members if info.filename == old)
    added = zipfile.ZipInfo(new)
    added.extra, added.comment = b"", b""
    members.insert(0 if first else len(members), (added, evil(data)))


def with_field(members: list[tuple[zipfile.ZipInfo, bytes]], field: bytes) -> None:
    members[0][0].extra = field


EDITS: dict[str, Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]] = {
    "a second data.pkl": lambda m: copied(m, "archive/data.pkl", "archive/data.pkl"),
    "one in capitals": lambda m: copied(m, "archive/data.pkl", "archive/DATA.pkl"),
    "a second tensor in capitals": lambda m: copied(m, "archive/data/0", "archive/Data/0"),
    "another folder first": lambda m: copied(m, "archive/data.pkl", "other/data.pkl", first=True),
    "another folder after": lambda m: copied(m, "archive/version", "other/version"),
    "no folder": lambda m: renamed(m, "archive/version", "version"),
    "big-endian": lambda m: m.__setitem__(3, (m[3][0], b"big")),
    "compressed": lambda m: setattr(m[0][0], "compress_type", zipfile.ZIP_DEFLATED),
    "a directory, by its attributes": lambda m: setattr(m[4][0], "external_attr", 0x10),
    "a directory, by its name": lambda m: copied(m, "archive/version", "archive/data/"),
    "a comment": lambda m: setattr(m[0][0], "comment", b"x"),
    "another name in a field": lambda m: with_field(m, b"up" + struct.pack("<HBI", 5 + 16, 1, 0) + b"archive/dama.pkl"),
}


@pytest.mark.parametrize("case", EDITS)
def test_archives_with_two_readings_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(rebuilt(lambda members: None))
    assert our_values(path) is not None, "Python writes what is taken"
    path.write_bytes(rebuilt(EDITS[case]))
    assert our_values(path) is None


def two_directories() -> bytes:
    """Python reads the directory before the end record, torch the one at the stored offset."""
    first, second = archive(), archive().replace(b"Kd", b"K2")
    end = struct.unpack("<4s4H2IH", first[-22:])
    directory = first[end[6] : end[6] + end[5]]
    return first[:-22] + directory + first[-22:] + second[:0]


def patched(offset: int, data: bytes) -> bytes:
    made = bytearray(archive())
    made[offset : (offset + len(data)) or None] = data
    return bytes(made)


@pytest.mark.parametrize(
    "data",
    [
        b"junk" + archive(),
        archive() + b"junk",
        archive()[:-22] + b"\0" * 4 + archive()[-22:],
        archive()[:-2] + b"\x04\0" + b"junk",
        two_directories(),
        # The zip64 locator leads elsewhere; the count in the end record is another.
        patched(-34, struct.pack("<Q", 0)),
        patched(-14, struct.pack("<HH", 6, 6)),
        archive().replace(b"archive/version", b"archive/versio\0"),
        archive().replace(b"archive/version", b"archive/v\xe9rsion"[:15]),
        patched(-6, struct.pack("<I", 0)),
        # The local header of the pickle: name, method, an extra field that is longer.
        patched(30, b"brchive"),
        patched(8, b"\x08\0"),
        patched(28, struct.pack("<H", 12)),
    ],
)
def test_archives_whose_parts_contradict_each_other_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    found = our_values(tmp_path / "a.pt")
    if found is not None:
        assert torch.load(tmp_path / "a.pt").numpy().tobytes() == found
        pytest.fail("it was taken")


class Rebuilt:
    """Pickled as a call of a function of torch with these arguments."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.call = function, arguments, state

    def __reduce__(self) -> Any:
        return self.call if self.call[2] is not None else self.call[:2]


@pytest.mark.parametrize("case", ["negative", "another function", "with state", "more values than the storage says"])
def test_tensors_that_torch_would_rebuild_otherwise_are_refused(case: str, tmp_path: Path) -> None:
    import torch._utils

    values, path = torch.arange(100, dtype=torch.float32), tmp_path / "a.pt"
    storage = torch.storage.TypedStorage(wrap_storage=values.untyped_storage(), dtype=torch.float32, _internal=True)
    arguments = (storage, 0, (100,), (1,), False, {})
    made = {
        "negative": Rebuilt(torch._utils._rebuild_tensor_v2, *arguments, {"neg": True}),
        "another function": Rebuilt(torch._utils._rebuild_tensor, *arguments[:4]),
        "with state": Rebuilt(torch._utils._rebuild_tensor_v2, *arguments, state={"arguments": (storage, 50, (50,), (1,))}),
    }
    torch.save(Rebuilt(torch._utils._rebuild_tensor_v2, *arguments), path)
    assert our_values(path) == values.numpy().tobytes()
    if case == "more values than the storage says":
        before = rebuilt(lambda members: None)
        data = rebuilt(lambda members: members.__setitem__(0, (members[0][0], evil(members[0][1]))))
        assert len(data) == len(before)
        assert data != before
        path.write_bytes(data)
    else:
        torch.save(made[case], path)
    assert our_values(path) is None


# config.json


def refused(directory: Path) -> str:
    with pytest.raises(BadData) as error:
        conversion.convert(Request(str(directory), "megatron-dist", str(directory.parent / "out")))
    assert not (directory.parent / "out").exists()
    return str(error.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan", "hf"])
@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "model.safetensors.index.json", "special_tokens_map.json", "tokenizer_config.json"],
)
@pytest.mark.parametrize("kind", ["twice", "utf-16", "bom", "nan", "surrogate"])
def test_json_with_two_readings_is_refused(kind: str, name: str, to: str, model: Path, tmp_path: Path) -> None:
    """Also where a file is only copied."""
    source = model
    if "token" in name or "generation" in name:
        shutil.copytree(Path(__file__).parents[1] / "demo" / "tokenizer", source, dirs_exist_ok=True)
        (source / name).write_text("{}")
    elif "index" in name:
        (source / "model.safetensors").rename(source / "model-00001-of-00001.safetensors")
        weight_map = dict.fromkeys(theirs(source / "model-00001-of-00001.safetensors"), "model-00001-of-00001.safetensors")
        (source / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    good = (source / name).read_text()
    text = {
        "twice": '{"vocab_size": 1, ' * (good[1] != "}") + good[(good[1] != "}") :].replace("{}", '{"a": 1, "a": 2}')
        if name != "model.safetensors.index.json"
        else good.replace('"weight_map": {', '"weight_map": {}, "weight_map": {'),
        "nan": good.replace("{", '{"x": NaN' + ", " * (good != "{}"), 1),
        "surrogate": good.replace("{", '{"x": "\\udc00"' + ", " * (good != "{}"), 1),
    }.get(kind, good)
    encoding = {"utf-16": "utf-16", "bom": "utf-8-sig"}.get(kind, "utf-8")
    (source / name).write_bytes(text.encode(encoding))
    with pytest.raises(BadData, match=name.replace(".", r"\.")):
        options = {"dtype": "bfloat16"} if to == "hf" else {}
        conversion.convert(Request(str(source), to, str(tmp_path / "out"), **options))


def test_a_setting_under_two_names_is_refused() -> None:
    """The names are those that transformers knows for each model type."""
    from transformers import CONFIG_MAPPING

    checked = 0
    presets = {configurations.model_type(preset): preset for preset in PRESETS.values() if preset.name.startswith("tiny")}
    for kind in configurations.MODEL_TYPES:
        # The language model's settings of one that sees are in a part of their own; K2 has those of V3.
        if kind not in presets:
            continue
        config = configurations.to_config(presets[kind], "float32")
        for alias, field in CONFIG_MAPPING[kind].attribute_map.items():
            old = config.get(field, config.get(alias))
            if old is None and kind == "falcon_h1":
                # All of its layers are alike: a list of them is refused for itself.
                continue
            given = {key: value for key, value in config.items() if key not in (alias, field)} | {field: old}
            same = configurations.from_config(given | {alias: old}, "same")
            assert same == configurations.from_config(given, "same")
            with pytest.raises(BadConfig, match="are one setting") as refused:
                is_list = isinstance(old, list) or ("layer" in alias and alias.endswith(("types", "type")))
                configurations.from_config(given | {alias: [7] if is_list else 7}, "other")
            assert alias in str(refused.value) and field in str(refused.value)
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("transformers_weights", "other.safetensors"),
        ("per_layer_config", {"1": {"num_attention_heads": 2}}),
        ("pruned_heads", {"0": [1]}),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", ["sliding_attention", "sliding_attention"]),
    ],
)
def test_settings_that_make_another_model_of_it_are_refused(setting: str, value: Any, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {setting: value}))
    assert setting in refused(model)
    (model / "config.json").write_text(json.dumps(config | {"layer_types": ["full_attention"] * TINY.num_layers}))
    conversion.convert(Request(str(model), "megatron-dist", str(model.parent / "out")))


def test_an_adapter_beside_a_model_is_refused(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")
    assert "transformers would add that adapter" in refused(model)


@pytest.mark.parametrize("change", ["in another shard", "not named"])
def test_an_index_that_says_something_else_is_refused(change: str, model: Path) -> None:
    tensors = list(theirs(model / "model.safetensors"))
    with safetensors.safe_open(model / "model.safetensors", "np") as file:
        found = {name: file.get_tensor(name) for name in tensors}
    (model / "model.safetensors").unlink()
    from safetensors.numpy import save_file

    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    save_file(dict(list(found.items())[::2]), model / names[0], {"format": "pt"})
    save_file(dict(list(found.items())[1::2]), model / names[1], {"format": "pt"})
    weight_map = {name: names[number % 2] for number, name in enumerate(tensors)}
    if change == "in another shard":
        weight_map[tensors[0]] = names[1]
    else:
        del weight_map[tensors[-1]]
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert tensors[0 if change == "in another shard" else -1] in refused(model)


# .metadata, and files beside each other


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "", ".", "..", "a\0b", "x/__0_0.distcp"])
def test_metadata_names_only_files_beside_it(name: str, model: Path) -> None:
    conversion.convert(Request(str(model), "torchtitan", str(model.parent / "titan")))
    titan = model.parent / "titan"
    os.unlink(titan / "lt-convert.json")
    metadata = pickle.loads((titan / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).relative_path = name
    (titan / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match=r"names a file outside the checkpoint|__0_0\.distcp|a\b"):
        conversion.convert(Request(str(titan), "hf", str(model.parent / "out")))


@pytest.mark.parametrize(("offset", "length"), [(-1, None), (1 << 60, None), (None, 1 << 60), (None, 0), (0, 10), (True, None)])
def test_metadata_with_offsets_outside_is_refused(offset: Any, length: Any, model: Path) -> None:
    conversion.convert(Request(str(model), "torchtitan", str(model.parent / "titan")))
    titan = model.parent / "titan"
    os.unlink(titan / "lt-convert.json")
    metadata = pickle.loads((titan / ".metadata").read_bytes())
    stored = next(iter(metadata.storage_data.values()))
    stored.offset = stored.offset if offset is None else offset
    stored.length = stored.length if length is None else length
    (titan / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData):
        conversion.convert(Request(str(titan), "hf", str(model.parent / "out")))


@pytest.mark.parametrize("lines", [["YQ== 0", "YQ== 1"], ["YQ== 0", "Yg== 0"]])
def test_ranks_given_twice_are_refused(lines: list[str], tmp_path: Path) -> None:
    from lt_convert.tokenizers import huggingface_tokenizer

    (tmp_path / "tokenizer.model").write_text("\n".join(lines) + "\n")
    with pytest.raises(BadData, match="line 2"):
        huggingface_tokenizer._read_ranks(tmp_path / "tokenizer.model")
