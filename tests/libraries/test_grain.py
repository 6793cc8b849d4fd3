"""`data=` of a sweep with the iterators of grain: a resumed sweep gets the data that an undisturbed one gets."""

# pyright: reportMissingImports=false

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from ..test_sweeps_data import assert_same, item, run


class Items:
    """Five items of a segment each."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return item(index)

    def __repr__(self) -> str:
        return "Items()"  # by which the states of a loader know their source


def of_dataset() -> Iterator[Any]:
    return iter(grain.MapDataset.source(Items()).seed(1).shuffle().repeat().to_iter_dataset())


def of_loader() -> Iterator[Any]:
    sampler = grain.samplers.IndexSampler(5, shuffle=True, seed=1)
    return iter(grain.DataLoader(data_source=Items(), sampler=sampler, worker_count=0))


@pytest.mark.parametrize("make", [of_dataset, of_loader])
def test_resumed_within_an_epoch_and_in_the_next_one(make: Any, tmp_path: Path):
    segments = [next(each)["label"] for each in [make()] for _ in range(7)]
    assert set(segments[:5]) == set(range(5)) != segments[:5]
    whole = run(make(), segments=7)
    assert (whole["label"] == np.array(segments)).all()
    for segments in (2, 6):
        run(make(), tmp_path / f"{segments}", segments=segments)
        assert_same(run(make(), tmp_path / f"{segments}", segments=7), whole)
