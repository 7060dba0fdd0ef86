"""The merge methods by mergekit's names, their parameters and defaults, and the rule that a method makes for a tensor."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lt_convert.tensors.merge_rules import Linear, Rule, Slerp, TaskArithmetic
from lt_convert.tensors.sparsity import Magnitude, Random, Sparsity
from lt_shared.console import UsageError

WEIGHT, DENSITY, T, NORMALIZE, LAMBDA, RESCALE = "weight", "density", "t", "normalize", "lambda", "rescale"
# Which number type holds a mask while mergekit computes: without effect on a result.
WITHOUT_EFFECT = ("int8_mask",)


@dataclasses.dataclass(frozen=True)
class TensorCase:
    """The input of a rule: the tensor's name and size, the shared parameters, and the parameters of every model but the base."""

    name: str
    size: int
    seed: int
    shared: Mapping[str, Any]
    models: Sequence[Mapping[str, Any]]

    def of_models(self, name: str) -> tuple[float, ...]:
        return tuple(parameters[name] for parameters in self.models)


@dataclasses.dataclass(frozen=True)
class Method:
    """`shared` and `of_model` are parameters with their defaults, None for a required one.

    `models` is the number of models besides the base, None for any. A method without a base has `has_base` False.
    """

    name: str
    rule: Callable[[TensorCase], Rule]
    shared: Mapping[str, Any]
    of_model: Mapping[str, Any]
    has_base: bool = True
    models: int | None = None

    def check_names(self, settings: Mapping[str, Any], origin: str) -> None:
        """Raises UsageError for a setting that the method does not have."""
        names = (*self.shared, *self.of_model, *WITHOUT_EFFECT)
        unknown = next((name for name in settings if name not in names), None)
        if unknown is not None:
            raise UsageError(
                f"{origin}: {self.name} has no parameter {unknown}", f"it has {', '.join(names[: -len(WITHOUT_EFFECT)])}"
            )


def _linear(case: TensorCase) -> Rule:
    weights = case.of_models(WEIGHT)
    if case.shared[NORMALIZE] and not sum(weights):
        raise UsageError(f"{case.name}: the weights sum to 0", "change them, or set --parameter normalize=false")
    return Linear(weights, case.shared[NORMALIZE])


def _slerp(case: TensorCase) -> Rule:
    return Slerp(case.shared[T])


def _task_arithmetic(elects_sign: bool, sparsity: Callable[[TensorCase, int], Sparsity] | None) -> Callable[[TensorCase], Rule]:
    def rule(case: TensorCase) -> Rule:
        sparsities = () if sparsity is None else tuple(sparsity(case, index) for index in range(len(case.models)))
        shared = case.shared
        return TaskArithmetic(case.of_models(WEIGHT), shared[LAMBDA], shared[NORMALIZE], elects_sign, sparsities)

    return rule


def _magnitude(case: TensorCase, index: int) -> Sparsity:
    return Magnitude(case.models[index][DENSITY], case.size, case.shared[RESCALE])


def _random(case: TensorCase, index: int) -> Sparsity:
    return Random(case.models[index][DENSITY], f"{case.seed}/{case.name}/{index}", case.shared[RESCALE])


def _of_differences(
    name: str, elects_sign: bool, sparsity: Callable[[TensorCase, int], Sparsity] | None, normalize: bool, rescale: bool
) -> Method:
    shared = {NORMALIZE: normalize, LAMBDA: 1.0, RESCALE: rescale}
    return Method(name, _task_arithmetic(elects_sign, sparsity), shared, {WEIGHT: None, DENSITY: 1.0})


_ALL = (
    Method("linear", _linear, {NORMALIZE: True}, {WEIGHT: None}, has_base=False),
    Method("slerp", _slerp, {T: None}, {}, models=1),
    _of_differences("task_arithmetic", False, None, normalize=False, rescale=False),
    _of_differences("ties", True, _magnitude, normalize=True, rescale=False),
    _of_differences("dare_linear", False, _random, normalize=False, rescale=True),
    _of_differences("dare_ties", True, _random, normalize=False, rescale=True),
)
METHODS = {method.name: method for method in _ALL}


def of_name(name: str) -> Method:
    """Raises UsageError for a method that lt-convert does not have."""
    if name not in METHODS:
        raise UsageError(f"the merge method {name} is unknown", f"known are {', '.join(METHODS)}")
    return METHODS[name]
