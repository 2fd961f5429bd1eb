"""The server of the studio: the page, and the endpoints that it calls."""

import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from normscope.checks import as_path
from normscope.errors import ConfigError, FileError
from normscope.lab.results.folders import DEFAULT_FOLDER
from normscope.studio import views
from normscope.studio.endpoints import routes
from normscope.studio.security import Guard
from normscope.studio.state import StudioState

HOST = "127.0.0.1"


def open_studio(
    runs: str | Path = "runs",
    *,
    lab: str | Path = DEFAULT_FOLDER,
    port: int = 0,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the studio on this machine until Ctrl-C, like `normscope studio`.

    Args:
        runs: Folder of the runs to show, and of those that are started from the page.
        lab: Folder of the lab's results.
        port: Port to listen on; 0 for a free one.
        on_ready: Called with the address, which contains the token, when the server accepts connections.
    """
    server = StudioServer(runs, lab, port)
    if on_ready is not None:
        on_ready(server.address)
    server.run()


class StudioServer:
    """A server that listens on the loopback interface; `run` serves until Ctrl-C or `stop`.

    Args:
        runs, lab, port: See `open_studio`.
    """

    def __init__(self, runs: str | Path, lab: str | Path = DEFAULT_FOLDER, port: int = 0) -> None:
        # Absolute: a relative folder could look like an option to the jobs.
        self.state = StudioState(as_path(runs, "a folder of runs").resolve(), as_path(lab, "a lab folder").resolve())
        static_folder()
        self._listener = _listen(port)
        token, port = secrets.token_urlsafe(24), self._listener.getsockname()[1]
        self.address = f"http://{HOST}:{port}/?token={token}"
        # Streams of live runs never end by themselves: they get two seconds when the server stops.
        app = create_app(self.state, token, port)
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
        )

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM, a closed terminal (SIGHUP) or `stop`; then stop the jobs of the page."""
        with self._stop_on_signals():
            try:
                self._server.run(sockets=[self._listener])
            finally:
                self._listener.close()
                self.state.close()

    @contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGHUP, which otherwise end the process before it has stopped its jobs."""
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        if threading.current_thread() is not threading.main_thread():  # Python lets no other thread set handlers
            numbers = []
        before = {one: signal.getsignal(one) for one in numbers if signal.getsignal(one) is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, lambda *_: self.stop())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


def create_app(state: StudioState, token: str, port: int) -> Starlette:
    """The application: pages and files of the front end, and `POST /api/...`."""
    page = static_folder()

    async def index(request: Request) -> Response:
        return FileResponse(page / "index.html", headers={"Cache-Control": "no-cache"})

    return Starlette(
        routes=[
            Route("/", index),
            *routes(state, views.endpoints()),
            *views.plain_routes(state),
            Mount("/", StaticFiles(directory=page)),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
    )


def static_folder() -> Path:
    """The built front end; an error if it has not been built."""
    folder = Path(str(files("normscope") / "studio" / "static"))
    if not (folder / "index.html").is_file():
        raise FileError("the studio's page has not been built\nfix: make page (needs Node.js 20 or newer)")
    return folder


def _listen(port: int) -> socket.socket:
    """Bind to the loopback interface only."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on port {port}: {error}\nfix: choose another with --port, or omit it"
        ) from None
    return listener
