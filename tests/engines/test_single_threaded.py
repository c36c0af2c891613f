"""One intra-op thread and no denormal numbers, for as long as it is asked for."""

from __future__ import annotations

from motet.client.visit import flushes_denormals, single_threaded


def test_an_inner_block_leaves_the_outer_one_as_it_was() -> None:
    assert not flushes_denormals()
    with single_threaded():
        with single_threaded():
            assert flushes_denormals()
        assert flushes_denormals()
    assert not flushes_denormals()
