"""The options of a merge, from the command line, from a configuration of mergekit, or from Python."""

import dataclasses
from collections.abc import Sequence

from lt_convert.commands.conversion import Request
from lt_convert.commands.merge import mergekit_config, recipe
from lt_convert.commands.merge.recipe import Recipe
from lt_convert.commands.merge.settings import Settings
from lt_convert.commands.merge.sources import Chosen
from lt_convert.commands.merge.vocabularies import VocabularyChoice
from lt_convert.formats import directories
from lt_convert.formats.checkpoint import ONE_RANK, LegacyTarget
from lt_shared.console import UsageError


@dataclasses.dataclass(frozen=True)
class MergeRequest:
    """The options of a merge; `schedule` is for checkpoints without explicit weights. Other fields as in `Request`.

    Without a `recipe` the checkpoints are averaged. `layers` is the number of layers that a configuration names, if it does.
    With `adapters` of PEFT, the only checkpoint is their base. With `ema`, the averages in checkpoints of lt-train are merged.
    """

    chosen: Sequence[Chosen]
    to: str
    destination: str
    schedule: str | None = None
    dtype: str | None = None
    force: bool = False
    legacy_target: LegacyTarget = ONE_RANK
    verify: bool = True
    recipe: Recipe | None = None
    layers: int | None = None
    adapters: Sequence[str] = ()
    ema: bool = False

    @property
    def models(self) -> Sequence[Chosen]:
        """The checkpoints that are read: the base of the recipe, if it is not among the others, is the last."""
        base = self.recipe.base if self.recipe else None
        if base is None or _same(base, [one.path for one in self.chosen]) is not None:
            return self.chosen
        return [*self.chosen, Chosen(base, None)]

    @property
    def base(self) -> int | None:
        """The index of the base in `models`."""
        base = self.recipe.base if self.recipe else None
        return None if base is None else _same(base, [one.path for one in self.models])

    @property
    def main(self) -> int | None:
        """The index of the model in `models` that gives the tokenizer and the configuration; None if none is named."""
        main = self.recipe.main if self.recipe else None
        return self.base if main is None else _same(main, [one.path for one in self.models])

    def conversion(self) -> Request:
        """The request as if the newest of the checkpoints were converted alone."""
        return Request(
            self.chosen[-1].path, self.to, self.destination, self.dtype, self.force, self.legacy_target, optimizer=False
        )


@dataclasses.dataclass(frozen=True)
class Choices:
    """The sources of a merge: checkpoints, averaged or by a `method`; a model with `adapters`; or the models in `config`."""

    chosen: Sequence[Chosen]
    method: str | None = None
    base: str | None = None
    parameters: Settings = dataclasses.field(default_factory=dict)
    adapters: Sequence[str] = ()
    config: str | None = None
    seed: int = 0
    tokenizer_source: str | None = None

    def applied(self, request: MergeRequest) -> MergeRequest:
        """Return `request` with these choices. Raises UsageError if choices exclude each other, BadConfig for a wrong file."""
        if self.config is not None:
            if self.chosen or self.method or self.base or self.parameters or self.adapters or self.tokenizer_source:
                raise UsageError(f"--config {self.config} names models, method and parameters", "drop the others")
            merge = mergekit_config.read(self.config, self.seed)
            dtype = request.dtype or merge.out_dtype
            return dataclasses.replace(request, chosen=merge.chosen, recipe=merge.recipe, layers=merge.layers, dtype=dtype)
        if not self.chosen:
            raise UsageError("no checkpoint to merge", "name at least two, or a file with --config")
        if self.method is None and (self.base or self.parameters or self.tokenizer_source):
            raise UsageError(
                "--base, --parameter and --tokenizer-source are for merges by a method", "name one, as --method ties"
            )
        made_by = None
        if self.method is not None:
            vocabulary = VocabularyChoice(self.tokenizer_source) if self.tokenizer_source else None
            made_by = recipe.from_options(
                self.method, self.chosen, self.base, self.parameters, request.dtype, self.seed, vocabulary
            )
        return dataclasses.replace(request, chosen=self.chosen, recipe=made_by, adapters=self.adapters)


def _same(path: str, paths: Sequence[str]) -> int | None:
    normalized = [directories.normalized(other) for other in paths]
    return normalized.index(directories.normalized(path)) if directories.normalized(path) in normalized else None
