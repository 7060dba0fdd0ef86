"""The names under which GPUs are known."""

import click
import pytest

from lt_train.config.cluster import GPUS, GpuName

TYPE = GpuName(list(GPUS))


@pytest.mark.parametrize(
    ("given", "name"),
    [("h100-80gb", "h100-80gb"), ("H100", "h100-80gb"), ("H200-141GB", "h200-141gb"), ("l4", "l4-24gb"), ("L40S", "l40s-48gb")],
)
def test_names_as_people_write_them(given: str, name: str) -> None:
    assert TYPE.convert(given, None, None) == name


@pytest.mark.parametrize("given", ["a100", "V100"])
def test_two_sizes_of_one_gpu(given: str) -> None:
    with pytest.raises(click.BadParameter, match=f"is one of {given.lower()}-[0-9]+gb and {given.lower()}-[0-9]+gb"):
        TYPE.convert(given, None, None)


@pytest.mark.parametrize("given", ["h", "", "h10", "p100", "h100-40gb"])
def test_other_names_list_what_is_known(given: str) -> None:
    with pytest.raises(click.BadParameter, match="h100-80gb"):
        TYPE.convert(given, None, None)
