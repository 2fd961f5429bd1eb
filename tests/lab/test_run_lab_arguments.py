"""Arguments of the lab's functions that are of the wrong type: refused with an error of normscope."""

from typing import Any

import pytest

from normscope.errors import NormscopeError
from normscope.lab.commands import run_lab
from normscope.lab.compare.compare import compare


@pytest.mark.parametrize(
    "arguments",
    [
        {"names": 17},
        {"names": [17]},
        {"names": [None]},
        {"names": {"norm-speed"}},
        {"names": b"norm-speed"},
        {"all": "no"},
        {"all": True, "ray": "no"},
        {"all": True, "quiet": 1},
        {"all": True, "budget": ["quick"]},
        {"all": True, "budget": 5},
        {"all": True, "seeds": "5"},
        {"all": True, "workers": "2"},
        {"all": True, "data": 5},
        {"all": True, "out": None},
    ],
    ids=str,
)
def test_run_lab_refuses_odd_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(NormscopeError):
        run_lab(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"lr": ["fast"]}, {"lr": [None]}, {"lr": 0.1}, {"ray": "no"}, {"quiet": 1}, {"seeds": "5"}, {"workers": "2"}],
    ids=str,
)
def test_compare_refuses_odd_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(NormscopeError):
        compare(norm=["rms", "layer"], **arguments)
