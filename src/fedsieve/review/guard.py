"""Who may talk to the page: a browser on this machine that was given the address with its token, and no other site.

Every request passes here before anything is looked at. What is refused learns nothing.
"""

from __future__ import annotations

import secrets
from http.cookies import SimpleCookie
from secrets import compare_digest
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Before an app: Host, Origin and token are checked; behind it: headers that let nothing out."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self.token = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self._cookie = f"fedsieve-review-{port}"
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        entering = scope["path"] == "/" and self._has_token(scope)
        if not self._from_here(scope, headers, entering) or not (entering or self._has_cookie(headers)):
            answer = PlainTextResponse("Open the address that `fedsieve review` printed.\n", 403, dict(HEADERS))
            await answer(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    told.setdefault(name, value)
                if entering:
                    told["Set-Cookie"] = f"{self._cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        await self._app(scope, receive, with_headers)

    def _from_here(self, scope: Scope, headers: Headers, entering: bool) -> bool:
        """Whether the browser believes to talk to this machine, and the page that asks is ours or none.

        With the token in it, the address may also be a link on another page.
        """
        host, origin, site = headers.get("host"), headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if host not in self._hosts or origin not in (None, f"http://{host}"):
            return False
        if scope["method"] in ("GET", "HEAD"):
            return entering or site in ("same-origin", "none")
        return origin is not None and site == "same-origin"

    def _has_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        return compare_digest(given.encode(), self.token.encode())

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except Exception:  # whatever a broken cookie makes of it
            return False
        return found is not None and compare_digest(found.value.encode(), self._session.encode())
