"""Optimizers whose work is divided: the bits of one process, and less memory on each rank."""

import pytest
import torch
from torch import Tensor

from tests.pairs import chiefly
from tests.training.ranks.processes import on_ranks
from tests.training.ranks.updates import state_loaded_in_any_order, update, update_all


@pytest.mark.parametrize("size", chiefly([3], [2, 4, 7]))
def test_updates_are_those_of_one_process_to_the_bit(size: int) -> None:
    by_rank: list[dict[tuple[str, str], tuple[dict[str, Tensor], int]]] = on_ranks(size, update_all)
    for optimizer, parallel in by_rank[0]:
        wanted, whole_state = update(optimizer=optimizer)
        states = [found[optimizer, parallel][1] for found in by_rank]
        for rank, found in enumerate(by_rank):
            weights, _ = found[optimizer, parallel]
            where = f"{optimizer} with {parallel} on rank {rank} of {size}"
            different = {name for name in wanted if not torch.equal(weights[name], wanted[name])}
            if parallel == "fsdp":
                # AdamW computes the last values of a row of memory one by one, and FSDP2 ends rows elsewhere.
                for name in different:
                    torch.testing.assert_close(
                        weights[name], wanted[name], rtol=1e-6, atol=1e-8, msg=f"{where}: {name}"
                    )
                different = {
                    name for name in different if optimizer == "muon" and is_matrix_of_a_block(name, wanted[name])
                }
            assert not different, f"{where}: {different}"
        # No rank keeps much more than its share, and together they keep everything once. FSDP2 counts steps on each.
        counters = 4 * size * len(wanted) if parallel == "fsdp" else 0
        assert whole_state <= sum(states) <= whole_state + counters
        assert max(states) < 1.3 * whole_state / size


def is_matrix_of_a_block(name: str, weight: Tensor) -> bool:
    return name.startswith("blocks.") and weight.dim() == 2


def test_a_sharded_state_is_gathered_in_one_order_on_all_ranks() -> None:
    for saved, again in on_ranks(2, state_loaded_in_any_order):
        assert saved.keys() == again.keys()
        assert [name for name, tensor in saved.items() if not torch.equal(tensor, again[name])] == []
