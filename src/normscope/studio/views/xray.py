"""The tab "xray"."""

from normscope.studio.endpoints import Endpoint

ENDPOINTS: dict[str, Endpoint] = {}
