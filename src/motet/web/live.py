"""Server-sent events: a page says what it shows, and gets that part again whenever the files behind it change.

Knows how to watch and send. Does not know what a part holds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

EVERY = 0.7  # seconds between two readings of the stamp
_SIGN = 15.0  # seconds after which a sign of life is sent, so that nobody in between closes the connection
Stamp = Callable[[], object]  # something that differs whenever there is something new to show
Show = Callable[[], tuple[str, bool]]  # the part as HTML, and whether nothing more will come


def stream(request: Request, stamp: Stamp, show: Show) -> StreamingResponse:
    """Events until nothing more will come, or nobody watches."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(request, stamp, show), media_type="text/event-stream", headers=headers)


async def events(request: Request, stamp: Stamp, show: Show) -> AsyncIterator[str]:
    before, silent = request.query_params.get("seen", ""), 0.0
    yield "retry: 2000\n\n"
    while not await request.is_disconnected():
        now = mark_of(await run_in_threadpool(stamp))
        if now != before:
            before, silent = now, 0.0
            html, over = await run_in_threadpool(show)
            yield event("part", html)
            if over:
                yield event("over", "")
                return
        elif silent >= _SIGN:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(EVERY)
        silent += EVERY


def mark_of(stamp: object) -> str:
    """A stamp as a short word, which a page puts into the address that it watches: what it shows is not sent again."""
    return blake2b(repr(stamp).encode(), digest_size=8).hexdigest()


def event(kind: str, html: str) -> str:
    """
    >>> event("part", "<p>a\\nb</p>")
    'event: part\\ndata: "<p>a\\\\nb</p>"\\n\\n'
    """
    return f"event: {kind}\ndata: {json.dumps(html)}\n\n"
