"""The tab "playground"."""

from normscope.studio.endpoints import Endpoint

ENDPOINTS: dict[str, Endpoint] = {}
