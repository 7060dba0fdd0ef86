"""The columns of Arrow tables: which are read for which keys, and rows as JSON objects."""

from collections.abc import Sequence
from typing import Any

import orjson

from lt_preprocess.readers import text_keys
from lt_preprocess.readers.arrow_rows import is_list, load_pyarrow
from lt_shared.console import BadData
from lt_shared.data.document_origins import key_paths


class Columns:
    """The columns of a table under keys, or under paths through structs. Raises BadData for a key without texts.

    `names` are those to read, a leaf of a struct as `struct.leaf`; `types` are those that the columns of the keys are read as: a
    column of type null has no value, and is read as one of texts, as is an optional key that the table lacks.
    """

    def __init__(self, source: str, schema: Any, json_keys: Sequence[str]):
        self._json_keys = json_keys
        self._paths = [_path(source, schema, key) for key in json_keys]
        self.names = list(dict.fromkeys(".".join(path) for path in self._paths if path is not None)) or schema.names[:1]
        self.types = [
            load_pyarrow().large_string() if path is None else _text_type(source, schema, key, path)
            for key, path in zip(json_keys, self._paths, strict=True)
        ]

    def select(self, batch: Any) -> Any:
        """A batch with a column for each key, by its name."""
        arrays = [self._column(batch, path) for path in self._paths]
        return load_pyarrow().RecordBatch.from_arrays(arrays, names=list(self._json_keys))

    def _column(self, batch: Any, path: tuple[str, ...] | None) -> Any:
        if path is None:
            return load_pyarrow().nulls(len(batch))
        column = batch.column(path[0])
        if len(path) == 1:
            return column
        import pyarrow.compute

        return pyarrow.compute.struct_field(column, list(path[1:]))


def _path(source: str, schema: Any, key: str) -> tuple[str, ...] | None:
    """The column of a key and the fields in it; None for an optional key that the table lacks."""
    name = text_keys.name_of(key)
    if schema.names.count(name) > 1:
        raise BadData(f"{source}: {schema.names.count(name)} columns are called {name!r}", "rename all but one of them")
    for path in ((name,), key_paths.path_of(name)):
        if _type_at(schema, path) is not None:
            return path
    if text_keys.is_optional(key):
        return None
    raise BadData(f"{source}: no column {name!r}; there are {', '.join(schema.names)}")


def _type_at(schema: Any, path: tuple[str, ...]) -> Any:
    """The type at a path, None if there is none."""
    fields = {field.name: field.type for field in schema}
    for part in path[:-1]:
        kind = fields.get(part)
        if kind is None or not load_pyarrow().types.is_struct(kind):
            return None
        fields = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
    return fields.get(path[-1])


def _text_type(source: str, schema: Any, key: str, path: tuple[str, ...]) -> Any:
    """The Arrow type that a column is read as."""
    pyarrow = load_pyarrow()
    kind = _type_at(schema, path)
    text = pyarrow.large_string()
    if _is_text(kind):
        return kind if pyarrow.types.is_string(kind) else text
    if is_list(kind) and _is_text(kind.value_type):
        return kind if pyarrow.types.is_string(kind.value_type) else pyarrow.large_list(text)
    name = text_keys.name_of(key)
    raise BadData(f"{source}: column {name!r} is of type {kind}, expected strings or lists of strings")


def _is_text(kind: Any) -> bool:
    types = load_pyarrow().types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_null(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


class RecordColumns(Columns):
    """The columns that matter in records, as one column of JSON objects without nulls.

    A table has every field in every row, null where the object that was written had none.
    """

    def __init__(self, source: str, schema: Any, json_key: str):
        self._json_keys = [json_key]
        self.names = [name for name in text_keys.columns_of(json_key) if name in schema.names]
        if not self.names:
            raise BadData(f"{source}: no column {text_keys.columns_of(json_key)[0]!r}; there are {', '.join(schema.names)}")
        self.types = [load_pyarrow().large_string()]

    def select(self, batch: Any) -> Any:
        table = batch.select(self.names)
        # to_pylist follows the offsets in a file.
        table.validate(full=True)
        texts = [orjson.dumps(_without_nulls(row), default=str).decode() for row in table.to_pylist()]
        return load_pyarrow().RecordBatch.from_arrays([load_pyarrow().array(texts, self.types[0])], names=self._json_keys)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def columns_for(source: str, schema: Any, json_keys: Sequence[str]) -> Columns:
    """Choose the columns that hold the texts of `json_keys`. Raises BadData for a key without texts."""
    if len(json_keys) == 1 and text_keys.is_record(json_keys[0]):
        return RecordColumns(source, schema, json_keys[0])
    return Columns(source, schema, json_keys)
