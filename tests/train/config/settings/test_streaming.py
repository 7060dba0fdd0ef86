"""The names of a run's datasets are short, and each dataset has its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.contracts.manifest import Dataset
from lt_train.config.settings.streaming import names


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (["/fsx/web_text", "/fsx/code_text"], ["web_text", "code_text"]),
        (["/fsx/web/part", "/fsx/code/part", "/fsx/books"], ["web/part", "code/part", "books"]),
        (["a/x/p", "b/x/p", "c/y/p"], ["a/x/p", "b/x/p", "y/p"]),
        (["s3://bucket/web: 1|2=3"], ["web__1_2_3"]),
        (["web", "web"], ["web", "web@2"]),
        (["web", "/a/web"], ["web", "a/web"]),
        ([], []),
    ],
)
def test_the_shortest_ends_that_differ(prefixes: list[str], expected: list[str]) -> None:
    assert names(list(map(Dataset, prefixes))) == expected


@given(st.lists(st.lists(st.sampled_from(["a", "b", "é", "x y"]), min_size=1, max_size=4).map("/".join), max_size=6))
def test_each_has_a_name_of_its_own(prefixes: list[str]) -> None:
    dataset_names = names(list(map(Dataset, prefixes)))
    assert len(dataset_names) == len(prefixes) == len(set(dataset_names))
