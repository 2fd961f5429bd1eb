"""The endpoints of each tab of the page: one file per tab, with a table `ENDPOINTS`."""

from collections.abc import Mapping

from starlette.routing import BaseRoute

from normscope.studio.endpoints import Endpoint
from normscope.studio.state import StudioState
from normscope.studio.views import block, embedding, lab, playground, runs, scope, xray

_VIEWS = (scope, embedding, block, runs, xray, lab, playground)


def endpoints() -> Mapping[str, Endpoint]:
    """All endpoints by name."""
    return {name: endpoint for view in _VIEWS for name, endpoint in view.ENDPOINTS.items()}


def plain_routes(state: StudioState) -> list[BaseRoute]:
    """Routes with a request or response that is not JSON: reports and uploads."""
    return [route for view in _VIEWS if hasattr(view, "plain_routes") for route in view.plain_routes(state)]
