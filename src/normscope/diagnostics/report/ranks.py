"""The ranks of torch.distributed in a report: what was compared, and what each rank did."""

from collections.abc import Sequence

from normscope.diagnostics.stats.ranks import RankRecord, RanksRecord, list_ranks
from normscope.render.formatting import format_number, pluralize

COLUMNS = ("rank", "batches", "backward", "steps", "mode", "loss", "inputs")


def describe_ranks(ranks: RanksRecord) -> str:
    """Say what was compared with whom, and whether it agrees.

    >>> members = tuple(RankRecord(rank, 2, 2, 2, True, 0.7, "c0ffee") for rank in range(2))
    >>> describe_ranks(RanksRecord(0, "fully_shard", (0, 1, 2), members, compared=3))
    'rank 0 of a model under fully_shard, compared with rank 1 (3 tensors): no differences; no x-ray of rank 2'
    """
    model = f"a model under {ranks.wrapper}" if ranks.wrapper else "a model without a distributed wrapper"
    missing = f"; no x-ray of {list_ranks(ranks.missing)}" if ranks.missing else ""
    others = [member.rank for member in ranks.members if member.rank != ranks.rank]
    if not others:
        return f"rank {ranks.rank} of {model}, not compared{missing}"
    found = pluralize(len(ranks.differences), "difference") if ranks.differences else "no differences"
    compared = f"{list_ranks(others)} ({pluralize(ranks.compared, 'tensor')})"
    return f"rank {ranks.rank} of {model}, compared with {compared}: {found}{missing}"


def rank_rows(ranks: RanksRecord) -> list[Sequence[str]]:
    """The cells of a table with a row for each rank that answered."""
    return [_row(member) for member in ranks.members]


def _row(member: RankRecord) -> Sequence[str]:
    mode = "" if member.training is None else "train" if member.training else "eval"
    loss = "" if member.loss is None else format_number(member.loss)
    counts = (member.rank, member.batches, member.backward_passes, member.steps)
    return [*(f"{count:,}" for count in counts), mode, loss, member.data[:8]]
