"""What tests of sweeps watch: which segments are trained, and the folder as a killed process leaves it."""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from modulax.sweeps import _folder
from modulax.sweeps._population import Lane


def count_trained(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the segments of runs that are trained from now on, under `"runs"`."""
    count, advance = Counter[str](), Lane.advance

    def counted(lane: Lane, segment: int) -> Any:
        count["runs"] += len(lane.members) * lane.size.seeds
        return advance(lane, segment)

    monkeypatch.setattr(Lane, "advance", counted)
    return count


@contextlib.contextmanager
def copied_before_writes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[Path]]:
    """Copy a folder, beside it, before everything that is written in it: what a process leaves that is killed then."""
    left: list[Path] = []

    def noted(write: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> None:
            left.append(folder.parent / f"{len(left)}")
            shutil.copytree(folder, left[-1])
            write(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(_folder.os, "replace", noted(os.replace))
        patch.setattr(_folder, "save", noted(_folder.save))
        yield left


def start(optimizer: Any, key: Any) -> Any:
    """Three parameters, and their state."""
    params = jax.random.normal(key, (3,))
    return params, optimizer.init(params)


def four_steps(optimizer: Any, carry: Any) -> tuple[Any, jax.Array]:
    """Return the carry after four steps on a parabola, and their losses."""

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        return optimizer.step(params, state, params), jnp.sum(params**2)

    return jax.lax.scan(step, carry, length=4)
