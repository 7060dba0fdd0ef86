"""A merge by one of the `methods`: the method, its base, and the settings of its parameters."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.commands.merge import methods
from lt_convert.commands.merge.methods import Method
from lt_convert.commands.merge.settings import Settings
from lt_convert.commands.merge.sources import Chosen
from lt_convert.commands.merge.vocabularies import VocabularyChoice
from lt_shared.console import UsageError


@dataclasses.dataclass(frozen=True)
class Recipe:
    """`settings` hold for all models; `model_settings` has a mapping per model, in their order.

    `base` is the path of the base model, None for a method without one. `dtype` is the dtype of the computation, by default the
    models' own; `seed` is for random masks. `vocabulary` says that models are merged by token. `main` is the model that gives
    the tokenizer and the configuration if there is no base, by default the first.
    """

    method: Method
    base: str | None
    settings: Settings
    model_settings: Sequence[Settings]
    dtype: str | None = None
    seed: int = 0
    vocabulary: VocabularyChoice | None = None
    main: str | None = None

    def __post_init__(self) -> None:
        for settings in (self.settings, *self.model_settings):
            self.method.check_names(settings, "the parameters")
        for settings in self.model_settings:
            shared = next((name for name in settings if name in self.method.shared), None)
            if shared is not None:
                raise UsageError(
                    f"the parameter {shared} of {self.method.name} is not one of a model", "set it for the whole merge"
                )

    def to_options(self) -> Mapping[str, Any]:
        """The options in the record beside the result, which show whether a merge is repeated."""
        return {
            "method": self.method.name,
            "base": self.base,
            "parameters": dict(self.settings),
            "model_parameters": [dict(settings) for settings in self.model_settings],
            "compute_dtype": self.dtype,
            "seed": self.seed,
            # Records of merges by row are as they were before merges by token.
            **({"vocabulary": self.vocabulary.to_options()} if self.vocabulary else {}),
            **({"main": self.main} if self.main else {}),
        }

    def weight(self, model: int) -> float | None:
        """The weight of a model, if it is one number for all tensors."""
        weight = self.model_settings[model].get(methods.WEIGHT, self.settings.get(methods.WEIGHT))
        return float(weight) if isinstance(weight, int | float) else None


def from_options(
    method: str,
    chosen: Sequence[Chosen],
    base: str | None,
    settings: Settings,
    dtype: str | None,
    seed: int,
    vocabulary: VocabularyChoice | None = None,
) -> Recipe:
    """The recipe of a command line; weights of the models are in `chosen`. SLERP starts from the first model if no base is named.

    Raises UsageError for an unknown method or parameter, and for a base that is missing or too many.
    """
    chosen_method = methods.of_name(method)
    if chosen_method.has_base and base is None:
        if chosen_method.models != 1 or len(chosen) != 2:
            raise UsageError(f"--method {method} needs a base model", "name it with --base")
        base = chosen[0].path
    if base is not None and not chosen_method.has_base:
        raise UsageError(f"--method {method} has no base model", "drop --base, or name the model with the others")
    weighted = next((one for one in chosen if one.weight is not None), None)
    if weighted and methods.WEIGHT not in chosen_method.of_model:
        raise UsageError(f"{weighted.path}={weighted.weight:g}: --method {method} has no weights", "it has --parameter t=0.5")
    model_settings = [{} if one.weight is None else {methods.WEIGHT: one.weight} for one in chosen]
    return Recipe(chosen_method, base, settings, model_settings, dtype, seed, vocabulary)
