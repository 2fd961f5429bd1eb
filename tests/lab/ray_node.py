"""`ray start` for several nodes on this machine that are reached from this machine only.

Ray replaces 127.0.0.1 by the machine's address in its network, and then listens on all of them.
"""

from ray._private import services
from ray.scripts.scripts import main

services.get_node_ip_address = lambda address=None: "127.0.0.1"

if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
