"""How ranks meet, and what they compare then."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from normscope.errors import ConfigError, RankError
from normscope.runtime import ranks as ranks_module
from normscope.runtime.ranks import _agree_on_name, describe_differences, join_ranks, rank_errors
from normscope.training.session import environment, rank_differences
from tests.training.forked import finish, start_forked
from tests.training.ranks.processes import become_rank, free_port


def compare(rank: int, port: int) -> None:
    """A rank of two. The other one has another version at first, then another precision, then another CPU."""
    become_rank(rank, 2, port)
    names = vars(ranks_module)
    version, names["__version__"] = names["__version__"], f"0.{rank}"
    with pytest.raises(ConfigError, match=r"different versions: normscope is 0\.0 on rank 0 and 0\.1 on rank 1\nfix: "):
        join_ranks()
    names["__version__"] = version
    ranks = join_ranks()
    assert ranks.gather("é" * rank) == ["", "é"]
    assert ranks.gather("") == ["", ""]
    cpu, dtypes = torch.device("cpu"), (torch.float32, torch.bfloat16)
    found = environment(cpu, torch.float32, threads=rank + 1)
    assert rank_differences(found, ranks) == []
    other = {**found, "cpu_capability": ("AVX2", "AVX512")[rank]}
    assert rank_differences(other, ranks) == ["cpu_capability is AVX2 on rank 0 and AVX512 on rank 1"]
    with pytest.raises(ConfigError, match="precision is float32 on rank 0 and bfloat16 on rank 1"):
        rank_differences(environment(cpu, dtypes[rank], threads=1), ranks)


def test_ranks_compare_their_versions_devices_and_kernels() -> None:
    port = free_port()
    for process in [start_forked(compare, rank, port) for rank in range(2)]:
        finish(process)


def test_differences_name_some_of_many_ranks() -> None:
    (text,) = describe_differences([{"torch": "2.13"}] * 20 + [{}])
    assert text == "torch is 2.13 on rank 0, 1, 2, 3, 4, 5, 6, 7 and 12 more and unknown on rank 20"


@pytest.mark.parametrize(("rank", "absent"), [(0, "rank 1, 2"), (1, "rank 0"), (2, "rank 0")])
def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch, rank: int, absent: str) -> None:
    monkeypatch.setattr(ranks_module, "_JOIN_TIMEOUT", timedelta(seconds=0.05))
    with (
        rank_errors(),
        pytest.raises(RankError, match=rf"^{absent} did not answer within .*\nfix: "),
    ):
        _agree_on_name(HashStore(), rank, 3)


def test_ranks_agree_on_a_name() -> None:
    store = HashStore()
    with ThreadPoolExecutor() as threads:
        names = [*threads.map(lambda rank: _agree_on_name(store, rank, 3), range(3))]
    assert len({*names}) == 1
