"""Read a merge configuration of mergekit (YAML) without changes to the file.

Paths in the file are relative to the working directory, as for mergekit. One slice that takes every layer of its models is read,
as most SLERP configurations have it; the number of layers is checked when the models are opened. What would give another model
here than in mergekit is refused by name.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.commands.merge import methods
from lt_convert.commands.merge.recipe import Recipe
from lt_convert.commands.merge.settings import Settings
from lt_convert.commands.merge.sources import Chosen
from lt_convert.commands.merge.vocabularies import UNION, TokenRule, VocabularyChoice
from lt_shared.console import BadConfig, UsageError
from lt_shared.files import storage, strict_yaml

_KNOWN = ("models", "slices", "merge_method", "base_model", "dtype", "out_dtype", "parameters", "tokenizer_source", "tokenizer")
_DTYPES = {name: name for name in ("float32", "bfloat16", "float16")}


@dataclasses.dataclass(frozen=True)
class MergekitConfig:
    """`layers` is the number of layers that the file's slice takes of every model, None for a file without slices."""

    chosen: Sequence[Chosen]
    recipe: Recipe
    out_dtype: str | None
    layers: int | None


def read(path: str, seed: int = 0) -> MergekitConfig:
    """Raises BadConfig for a malformed file and for settings that would have another result here, NoInput for a missing file."""
    try:
        document = strict_yaml.loads(storage.read_record(path).decode())
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: not YAML: {error}") from None
    if not isinstance(document, Mapping) or "merge_method" not in document:
        raise BadConfig(f"{path}: not a merge configuration of mergekit: it has no merge_method")
    unknown = next((name for name in document if name not in _KNOWN), None)
    if unknown is not None:
        raise BadConfig(f"{path}: {unknown}: is not read here", f"known keys are {', '.join(_KNOWN)}")
    try:
        method = methods.of_name(str(document["merge_method"]))
        entries, slice_settings, layers = _entries(document, path)
        base = document.get("base_model")
        if method.has_base and base is None:
            raise BadConfig(f"{path}: base_model: missing: {method.name} needs one", "name the base model")
        base = None if base is None else _place(base, "base_model", path)
        if not method.has_base and base is not None and base not in [place for place, _ in entries]:
            raise BadConfig(f"{path}: base_model: {method.name} has none, and merges {base} like the others", "list it in models")
        settings = _mapping(document, "parameters", path)
        recipe = Recipe(
            method,
            base if method.has_base else None,
            {**settings, **slice_settings},
            [settings for _, settings in entries],
            _dtype(document, "dtype", path),
            seed,
            _vocabulary(document, path),
            None if method.has_base else base,
        )
    except UsageError as error:
        raise BadConfig(f"{path}: {error}", error.hint) from None
    if slice_settings.keys() & settings.keys():
        name = sorted(slice_settings.keys() & settings.keys())[0]
        raise BadConfig(f"{path}: {name}: is in the parameters of the merge and in those of its slice", "leave one of them out")
    return MergekitConfig([Chosen(place, None) for place, _ in entries], recipe, _dtype(document, "out_dtype", path), layers)


def _entries(document: Mapping[str, Any], path: str) -> tuple[list[tuple[str, Settings]], Settings, int | None]:
    """The models with their settings, the settings of their slice, and the number of layers in the slice."""
    if ("models" in document) == ("slices" in document):
        raise BadConfig(f"{path}: either models or slices is needed")
    if "models" in document:
        models = _list(document, "models", path)
        return [_entry(model, {"model", "parameters"}, path) for model in models], {}, None
    slices = _list(document, "slices", path)
    if len(slices) != 1 or not isinstance(slices[0], Mapping):
        raise BadConfig(
            f"{path}: slices: {len(slices)} slices: layers of models one after the other are another architecture",
            "only one slice with every layer is read here: use mergekit for others",
        )
    unknown = next((name for name in slices[0] if name not in ("sources", "parameters")), None)
    if unknown is not None:
        raise BadConfig(f"{path}: slices: {unknown}: is not read here", "known keys are sources, parameters")
    sources = _list(slices[0], "sources", path)
    ranges = {str(source.get("layer_range") if isinstance(source, Mapping) else None) for source in sources}
    layer_range: Any = sources[0].get("layer_range") if isinstance(sources[0], Mapping) else None
    is_range = isinstance(layer_range, list) and len(layer_range) == 2 and all(type(layer) is int for layer in layer_range)
    if len(ranges) != 1 or not is_range or layer_range[0] != 0:
        raise BadConfig(
            f"{path}: layer_range: {', '.join(sorted(ranges))}",
            "every source takes all layers, as [0, 32]: use mergekit for others",
        )
    entries = [_entry(source, {"model", "parameters", "layer_range"}, path) for source in sources]
    return entries, _mapping(slices[0], "parameters", path), layer_range[1]


def _entry(entry: Any, keys: set[str], path: str) -> tuple[str, Settings]:
    if not isinstance(entry, Mapping) or "model" not in entry or set(entry) - keys:
        raise BadConfig(f"{path}: {entry!r}: not a model with its parameters", f"known keys are {', '.join(sorted(keys))}")
    return _place(entry["model"], "model", path), _mapping(entry, "parameters", path)


def _vocabulary(document: Mapping[str, Any], path: str) -> VocabularyChoice | None:
    """The vocabulary of the result: `tokenizer_source`, or `tokenizer` with rules for tokens."""
    source, tokenizer = document.get("tokenizer_source"), document.get("tokenizer")
    if source is not None and tokenizer is not None:
        raise BadConfig(f"{path}: tokenizer_source and tokenizer are both there", "leave one of them out")
    if tokenizer is None:
        return None if source is None else VocabularyChoice(_place(source, "tokenizer_source", path))
    _check_keys(tokenizer, ("source", "tokens", "pad_to_multiple_of"), f"{path}: tokenizer")
    multiple = tokenizer.get("pad_to_multiple_of")
    if multiple is not None and (type(multiple) is not int or multiple < 1):
        raise BadConfig(f"{path}: pad_to_multiple_of is {multiple!r}", "it is a number of rows, as 64")
    tokens = tokenizer.get("tokens") or {}
    if not isinstance(tokens, Mapping):
        raise BadConfig(f"{path}: tokenizer: tokens: not a mapping of tokens to sources")
    rules = {str(token): _token_rule(str(token), entry, path) for token, entry in tokens.items()}
    return VocabularyChoice(_place(tokenizer.get("source", UNION), "tokenizer: source", path), rules, multiple or 1)


def _token_rule(token: str, entry: Any, path: str) -> TokenRule:
    origin = f"{path}: tokenizer: {token!r}"
    _check_keys(entry, ("source", "force"), origin)
    source, force = entry.get("source"), entry.get("force", False)
    if type(force) is not bool:
        raise BadConfig(f"{origin}: force is {force!r}", "it is true or false")
    if not isinstance(source, Mapping) or "kind" not in source:
        return TokenRule(_place(source, f"tokenizer: {token!r}: source", path), force=force)
    if source["kind"] == "zero" and len(source) == 1:
        return TokenRule(None, force=force)
    _check_keys(source, ("kind", "model", "token", "token_id"), origin)
    text, number = source.get("token"), source.get("token_id")
    is_token = (isinstance(text, str) and number is None) or (text is None and type(number) is int)
    if source["kind"] != "model_token" or not is_token:
        raise BadConfig(
            f"{origin}: {source!r} is no source", "it is {kind: zero}, or {kind: model_token, model, token or token_id}"
        )
    return TokenRule(_place(source.get("model"), f"tokenizer: {token!r}: model", path), text, number, force)


def _check_keys(mapping: Any, keys: Sequence[str], origin: str) -> None:
    if not isinstance(mapping, Mapping) or set(mapping) - set(keys):
        raise BadConfig(f"{origin}: {mapping!r:.80} is not read here", f"known keys are {', '.join(keys)}")


def _place(model: Any, field: str, path: str) -> str:
    """The directory of a model, which mergekit also takes as a mapping."""
    has_adapter = isinstance(model, Mapping) and model.get("lora")
    directory = model
    for key in ("model", "path"):
        directory = directory.get(key) if isinstance(directory, Mapping) else directory
    if has_adapter or not isinstance(directory, str):
        raise BadConfig(
            f"{path}: {field}: is not the path of a model", "merge adapters into weights first: lt-convert merge --adapter"
        )
    return directory


def _list(mapping: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = mapping.get(name)
    if not isinstance(value, list) or not value:
        raise BadConfig(f"{path}: {name}: not a list of models")
    return value


def _mapping(mapping: Mapping[str, Any], name: str, path: str) -> Settings:
    value = mapping.get(name) or {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadConfig(f"{path}: {name}: not a mapping of parameters to values")
    return value


def _dtype(document: Mapping[str, Any], name: str, path: str) -> str | None:
    dtype = document.get(name)
    if dtype is None:
        return None
    if str(dtype) not in _DTYPES:
        raise BadConfig(f"{path}: {name}: {dtype}", f"known are {', '.join(_DTYPES)}")
    return str(dtype)
