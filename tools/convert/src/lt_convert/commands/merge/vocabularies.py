"""Merge models with different vocabularies by token: the vocabulary of the result, and every token's row in every model.

The rules are mergekit 0.1.5's. A model that lacks a token takes the first row that exists: the row that the configuration
names for the token; the row of the only model with the token; the base's row; an average over the models with the token; zeros.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from lt_convert.commands.merge.plan import Part
from lt_convert.formats import location
from lt_convert.formats.checkpoint import Source
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.vocabulary_rows import AVERAGE, ZEROS, Rows
from lt_convert.tokenizers import tokenizer_json, vocabulary
from lt_convert.tokenizers.vocabulary import Vocabulary
from lt_convert.weights import families
from lt_convert.weights.mapping import Model
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT
from lt_shared.console import BadData, note, warn
from lt_shared.models.architecture import Architecture
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

UNION, BASE = "union", "base"


@dataclasses.dataclass(frozen=True)
class TokenRule:
    """The row of a token: zeros without a `model`, else the row of this model for the same token, a `token` or a `token_id`.

    With `force`, models that have the token take this row, too.
    """

    model: str | None
    token: str | None = None
    token_id: int | None = None
    force: bool = False


@dataclasses.dataclass(frozen=True)
class VocabularyChoice:
    """The tokenizer of the result: "union", "base", or the path of a model. `tokens` has rules, and adds tokens that are new.

    The embedding has a `multiple` of rows.
    """

    source: str
    tokens: Mapping[str, TokenRule] = dataclasses.field(default_factory=dict)
    multiple: int = 1

    @property
    def model(self) -> str | None:
        """The path of the model that has the tokenizer of the result, if the choice names one."""
        return None if self.source in (UNION, BASE) else self.source

    def to_options(self) -> Mapping[str, Any]:
        return {
            "source": self.source,
            "tokens": {token: dataclasses.asdict(rule) for token, rule in self.tokens.items()},
            "multiple": self.multiple,
        }


@dataclasses.dataclass(frozen=True)
class MergedVocabulary:
    """`rows` has the rows of every part, in the order of the parts. `donor` is the source that has the special tokens' ids."""

    tokenizer: TokenizerFiles
    donor: Source
    rows: Sequence[Rows]
    padding: int

    @property
    def size(self) -> int:
        return len(self.rows[0].rows) + self.padding

    def applied(self, source: Source) -> Source:
        """Return `source` with this vocabulary in its configuration; its tensors are as before."""
        architecture = dataclasses.replace(source.model.architecture, vocab_size=self.size)
        return dataclasses.replace(
            source,
            model=Model(architecture, architecture.padded_vocab_size()),
            tokenizer=self.tokenizer,
            special_ids=self.donor.special_ids,
            generation=self.donor.generation,
        )


def names(architecture: Architecture) -> tuple[str, ...]:
    """The canonical tensors with a row for each token."""
    return families.family_of(architecture).embedding, OUTPUT_WEIGHT


def merged(choice: VocabularyChoice, parts: Sequence[Part], base: int | None, files: Files) -> MergedVocabulary:
    """Read the tokenizers and find each token's rows. `base` is the index of the base in `parts`, if the merge has one.

    Raises BadData for a model without a tokenizer that the choice needs, and for rules that name what does not exist.
    """
    first = 0 if base is None else base
    vocabularies = _read(parts, first)
    donor = parts[first].source
    if choice.model is not None:
        donor = location.open_source(choice.model, files)
        if donor.tokenizer is None:
            raise BadData(f"{donor.directory}: has no tokenizer", "name a model with one in tokenizer_source")
        result = vocabulary.read(donor.tokenizer, 1 << 62)
    else:
        order = [first, *(index for index in range(len(parts)) if index != first)]
        further = vocabulary.union([vocabularies[index] for index in order]) if choice.source == UNION else []
        result = vocabulary.extended(vocabularies[first], further)
    result = _with_rules(result, choice)
    size = max(result.ids.values()) + 1
    multiple = -(-size // choice.multiple) * choice.multiple
    for part in parts:
        if part.source.model.architecture.vocab_size != multiple:
            before = part.source.model.architecture.vocab_size
            note(f"{part.source.directory}: its vocabulary of {before:,} tokens becomes one of {multiple:,}")
    places = {rule.model: location.locate(rule.model, files)[0] for rule in choice.tokens.values() if rule.model is not None}
    rows = _rows(choice, parts, base, vocabularies, result.ids, size, places)
    return MergedVocabulary(result.files, donor, rows, multiple - size)


def _read(parts: Sequence[Part], first: int) -> list[Vocabulary]:
    """Read the parts' tokenizers. A model without a tokenizer has the one of the part `first`, as in mergekit."""
    tokenizer = parts[first].source.tokenizer
    if tokenizer is None:
        raise BadData(f"{parts[first].source.directory}: has no tokenizer, and tokens are compared", "put it beside the model")
    for part in parts:
        if part.source.tokenizer is None:
            warn(f"{part.source.directory}: has no tokenizer: taken to have the one in {parts[first].source.directory}")
    return [vocabulary.read(part.source.tokenizer or tokenizer, part.source.model.architecture.vocab_size) for part in parts]


def _with_rules(result: Vocabulary, choice: VocabularyChoice) -> Vocabulary:
    """Add the tokens that only rules name."""
    return vocabulary.extended(result, [tokenizer_json.added_token(token) for token in choice.tokens if token not in result.ids])


def _rows(
    choice: VocabularyChoice,
    parts: Sequence[Part],
    base: int | None,
    vocabularies: Sequence[Vocabulary],
    ids: Mapping[str, int],
    size: int,
    places: Mapping[str, str],
) -> list[Rows]:
    """The rows of every part; `places` has the directories of the models that rules name."""
    rows = numpy.full((len(parts), size), -1, numpy.int64)
    for index, one in enumerate(vocabularies):
        rows[index, [ids[token] for token in one.ids if token in ids]] = [row for token, row in one.ids.items() if token in ids]
    has_token = rows >= 0
    count = has_token.sum(axis=0)
    donors = numpy.where(count == 1, has_token.argmax(axis=0), AVERAGE).astype(numpy.int16)
    if base is not None:
        donors[has_token[base] & (count > 1)] = base
    donors[count == 0] = ZEROS
    donor_rows = numpy.where(donors >= 0, rows[numpy.maximum(donors, 0), numpy.arange(size)], -1)
    forced = numpy.zeros(size, bool)
    for token, rule in choice.tokens.items():
        number = ids[token]
        donors[number], donor_rows[number] = _ruled(token, rule, parts, vocabularies, places)
        forced[number] = rule.force
    missing = [token for token, number in ids.items() if count[number] == 0 and token not in choice.tokens]
    if missing:
        warn(f"no model has the tokens {', '.join(map(repr, missing[:5]))} ({len(missing):,} in all): their embeddings are zeros")
    averages = {
        number: [(index, int(rows[index, number])) for index in range(len(parts)) if rows[index, number] >= 0]
        for number in numpy.flatnonzero(donors == AVERAGE).tolist()
    }
    result = []
    for index in range(len(parts)):
        has_own = has_token[index] & ~forced
        models = numpy.where(has_own, index, donors).astype(numpy.int16)
        result.append(Rows(models, numpy.where(has_own, rows[index], donor_rows), averages))
    return result


def _ruled(
    token: str, rule: TokenRule, parts: Sequence[Part], vocabularies: Sequence[Vocabulary], places: Mapping[str, str]
) -> tuple[int, int]:
    """The model and the row that a rule names. Raises BadData if they do not exist."""
    if rule.model is None:
        return ZEROS, -1
    merged_places = [part.source.directory for part in parts]
    if places[rule.model] not in merged_places:
        raise BadData(
            f"the token {token!r} takes a row of {rule.model}, which is not merged", f"merged are {', '.join(merged_places)}"
        )
    index = merged_places.index(places[rule.model])
    row = rule.token_id
    if row is None:
        row = vocabularies[index].ids.get(token if rule.token is None else rule.token, -1)
    if not 0 <= row < vocabularies[index].size:
        raise BadData(f"the token {token!r} takes a row that {rule.model} does not have", "name another token or model")
    return index, row
