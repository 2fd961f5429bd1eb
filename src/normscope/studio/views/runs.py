"""The tab "runs"."""

from normscope.studio.endpoints import Endpoint

ENDPOINTS: dict[str, Endpoint] = {}
