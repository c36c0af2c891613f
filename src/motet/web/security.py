"""Who may see and change what: hosts, origins, the token, and headers that keep strangers' code out of pages.

- A request must name a host that the dashboard was started for: a page of another site cannot reach it under a name
  of its own (DNS rebinding).
- What changes something needs the token, in a header or through a session that was begun with it, must come from a
  page of the dashboard itself (Origin), and carries a word that only such pages know.
- What a page of another site loads as an image, a script or a frame gets no answer: even looking is work.
- Where a federation's kit is shown, looking needs the token too: a kit is for its owner alone, and other users of the
  machine can reach the dashboard.
- Pages may load scripts and styles from the dashboard alone, and none that stand in the page.
Knows HTTP. Does not know what pages show.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from motet.errors import MotetError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LARGEST = 1_000_000  # bytes of a form


class Refused(MotetError):
    """A request that may not do what it asks for."""


@dataclass(frozen=True)
class Access:
    """What a dashboard allows, and the words that prove who asks."""

    hosts: frozenset[str]  # names that requests may give
    changes: bool = True  # whether anything can be changed at all
    private: bool = False  # looking needs the token too
    token: str = field(default_factory=lambda: token_urlsafe(24), repr=False)

    def derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), sha256).hexdigest()

    @property
    def session(self) -> str:
        """What the cookie holds: not the token itself."""
        return self.derived("session")

    @property
    def form_word(self) -> str:
        """What every form of a page holds, so that a page of somebody else cannot send one."""
        return self.derived("form")

    def knows(self, request: Request) -> bool:
        """Whether a request comes from somebody who has the token."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        cookie = request.cookies.get(cookie_name(request), "")
        return self.takes_token and (same(given, self.token) or same(cookie, self.session))

    def may_change(self, request: Request) -> bool:
        return self.changes and self.knows(request)

    def may_look(self, request: Request) -> bool:
        """Everybody may sign in, and load what that page is made of."""
        path = request.url.path
        return not self.private or path == "/sign-in" or path.startswith("/static/") or self.knows(request)

    @property
    def takes_token(self) -> bool:
        return self.changes or self.private

    def is_token(self, given: str) -> bool:
        return self.takes_token and same(given.strip(), self.token)


def same(given: str, right: str) -> bool:
    """In a time that does not depend on where the two differ."""
    return hmac.compare_digest(given.encode(), right.encode())


def cookie_name(request: Request) -> str:
    """Of its port: browsers send cookies to all ports of a host."""
    return f"motet-{request.url.port or 80}"


def host_of(text: str) -> str:
    """
    >>> host_of("localhost:8765"), host_of("[::1]:8765"), host_of("evil@127.0.0.1")
    ('localhost', '::1', '')
    """
    if "@" in text or "/" in text:
        return ""
    try:
        return (urlsplit(f"//{text}").hostname or "").lower()
    except ValueError:
        return ""


def check_origin(request: Request) -> None:
    """Refuse what another site's page sends: browsers say where a form or a script comes from."""
    origin = request.headers.get("origin", "")
    if not origin and "authorization" in request.headers:
        return  # a program, and not a page in a browser
    if urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower() or not origin:
        raise Refused(
            f"this request comes from {origin or 'nowhere'}, and only pages of the dashboard may send it"
        )


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of several values of one name the last one."""
    raw = bytearray()
    try:
        async for piece in request.stream():
            raw += piece
            if len(raw) > _LARGEST:
                raise Refused(f"the form has more than {_LARGEST:,} bytes")
    except ClientDisconnect as e:
        raise Refused("the form was cut off") from e
    try:
        found = parse_qs(raw.decode(), keep_blank_values=True, max_num_fields=2000)
    except ValueError as e:
        raise Refused(f"the form cannot be read: {e}") from e
    return {k: v[-1] for k, v in found.items()}


async def allowed_form(request: Request, access: Access) -> dict[str, str]:
    """The fields of a form that may change something; refused without the token."""
    if not access.changes:
        raise Refused("this dashboard shows and changes nothing; it was started so")
    return await owned_form(request, access)


async def owned_form(request: Request, access: Access) -> dict[str, str]:
    """The fields of a form of somebody who has the token."""
    check_origin(request)
    form = await read_form(request)
    if not access.knows(request):
        raise Refused("this needs the token that `motet ui` printed\nhint: sign in with it first")
    if "authorization" not in request.headers and not same(form.get("form_word", ""), access.form_word):
        raise Refused(
            "this form is not of this dashboard, or the dashboard was started anew\nhint: load the page again"
        )
    return form


class Guarded:
    """Puts the headers on every answer, and answers only who may look, under a name that is known."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self.refusal(Request(scope)) or self.app
        await answer(scope, receive, with_headers)

    def refusal(self, request: Request) -> Response | None:
        if host_of(request.headers.get("host", "")) not in self.access.hosts:
            text = "this dashboard does not answer under that name\nhint: motet ui --name NAME allows one\n"
            return PlainTextResponse(text, 421)
        # browsers say from where a page loads this; links to the dashboard may be followed
        followed = request.method == "GET" and request.headers.get("sec-fetch-dest") == "document"
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed:
            return PlainTextResponse("a page of another site asks for this, and gets nothing\n", 403)
        if self.access.may_look(request):
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/sign-in", 303)
        return PlainTextResponse("this needs the token that `motet ui` printed\nhint: sign in first\n", 403)


def signed_in(response: Response, request: Request, access: Access) -> Response:
    """Begin a session, until the browser is closed."""
    options: dict[str, Any] = {
        "httponly": True,
        "samesite": "strict",
        "secure": request.url.scheme == "https",
    }
    response.set_cookie(cookie_name(request), access.session, **options)
    return response
