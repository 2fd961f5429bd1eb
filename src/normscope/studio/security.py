"""Access control: only this user's browser, from this server's own page.

Other programs on the machine don't know the token. Other web pages in the same browser can send requests to a local
address, but they cannot read the token's cookie, and the browser tells where a request comes from: its `Origin` and, if
a name was made to point here (DNS rebinding), its `Host`.

What this cannot prevent: browsers don't separate cookies by port, so another server on 127.0.0.1 that the user opens in
the same browser receives the cookie, and can then do what the page can. The token is new each time the studio starts.
"""

import hmac
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
"""The page may talk to its own server only."""
REPORT_POLICY = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""A report's own policy allows its one script only. Here it also loses the studio's origin, and so its token."""


class Guard:
    """Middleware that checks host, origin and token of every request, and adds security headers to every response.

    Args:
        app: The application.
        token: The secret of this server.
        port: Its port.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token, self._cookie = app, token, f"normscope-{port}"
        self._hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_token = self._is_token(parse_qs(scope["query_string"].decode("latin-1")).get("token", []))
        problem = self._problem(headers, has_token)
        app: ASGIApp = self._app if problem is None else PlainTextResponse(problem, 403)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                # A page that brings its own policy, such as a report, is not made more open by this one: both hold.
                added.setdefault("Content-Security-Policy", POLICY)
                added["X-Content-Type-Options"] = "nosniff"
                added["Referrer-Policy"] = "no-referrer"
                added["Cross-Origin-Resource-Policy"] = "same-origin"
                added.setdefault("Cache-Control", "no-store")
                if has_token and problem is None:
                    added.append("Set-Cookie", f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        await app(scope, receive, send_with_headers)

    def _problem(self, headers: Headers, has_token: bool) -> str | None:
        """Why a request is refused; None if it is allowed."""
        if headers.get("host", "").lower() not in self._hosts:
            return "Refused: unknown host. Open the address that `normscope studio` printed."
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in [f"http://{host}" for host in self._hosts]:
            return "Refused: the request comes from another page."
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not has_token:
            return "Refused: the request comes from another site."
        if not (has_token or self._is_token(self._given(headers))):
            return "Refused: open the address that `normscope studio` printed; it contains a token."
        return None

    def _given(self, headers: Headers) -> Sequence[str]:
        """The tokens in a request: in a header for scripts, in a cookie for the page."""
        found = [headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return found
        return [*found, cookie[self._cookie].value] if self._cookie in cookie else found

    def _is_token(self, given: Sequence[str]) -> bool:
        return any(hmac.compare_digest(one.encode(), self._token.encode()) for one in given)
