"""The tab "Scope": which values share statistics, and every step of the norm on them."""

import msgspec

from normscope.scope import Scope
from normscope.studio.endpoints import Endpoint
from normscope.studio.state import Studio


class ScopeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A scope and a shape."""

    text: str
    shape: list[int]
    sizes: dict[str, int] = {}


def scope(studio: Studio, request: ScopeRequest) -> dict[str, object]:
    """Bind the scope to the shape."""
    plan = Scope.parse(request.text).bind(tuple(request.shape), **request.sizes)
    return {"names": plan.names, "split_shape": plan.split_shape, "reduced": plan.reduced, "count": plan.count}


ENDPOINTS: dict[str, Endpoint] = {"scope": scope}
