"""Compiled code where nothing can be cached: a read-only installation without a home."""

from __future__ import annotations

import numba
import numpy as np
import pytest

import data_prep.compiled
import gpst.compiled


def double(x):
    return 2 * x


@pytest.mark.parametrize("module", [gpst.compiled, data_prep.compiled])
def test_code_is_compiled_without_a_place_for_the_cache(module, monkeypatch) -> None:
    njit = numba.njit

    def without_cache(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'double': no locator available")
        return njit(**options)

    owner = module if hasattr(module, "njit") else module.numba
    monkeypatch.setattr(owner, "njit", without_cache)
    compiled = module.compiled(double)
    assert compiled(np.arange(3)).tolist() == [0, 2, 4]
    assert compiled.signatures
