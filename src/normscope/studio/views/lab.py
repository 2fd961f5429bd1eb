"""The tab "lab"."""

from normscope.studio.endpoints import Endpoint

ENDPOINTS: dict[str, Endpoint] = {}
