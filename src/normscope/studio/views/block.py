"""The tab "block"."""

from normscope.studio.endpoints import Endpoint

ENDPOINTS: dict[str, Endpoint] = {}
