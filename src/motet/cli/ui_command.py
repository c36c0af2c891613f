"""The command `motet ui`: the dashboard in a browser."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.cli.command import Add, say
from motet.errors import UsageError, need

if TYPE_CHECKING:
    from motet.web.security import Access


def ui_command(add: Add) -> None:
    p = add("ui", do_ui, "show runs, studies and federations in a browser, and start some there")
    p.add_argument(
        "base", nargs="?", default="runs", metavar="FOLDER", help="the folder of the runs (default: runs)"
    )
    p.add_argument(
        "--kit",
        action="append",
        default=[],
        metavar="KIT",
        help="a federation's kit, of the server or a site; repeatable",
    )
    p.add_argument("--port", type=int, default=8765, metavar="N", help="default: 8765; 0: any that is free")
    p.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which only this machine reaches")
    p.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name under which browsers may ask; repeatable",
    )
    p.add_argument("--read-only", action="store_true", help="nothing can be changed, not even with the token")
    p.add_argument(
        "--changes",
        action="store_true",
        help="who has the token may change something, although --host is not loopback",
    )


def do_ui(args: Any) -> None:
    need("the dashboard", "ui", "starlette", "uvicorn")
    from motet.web.app import serve
    from motet.web.dashboard import Dashboard
    from motet.web.run_index import RunIndex
    from motet.web.security import Access

    base = Path(args.base).resolve()
    if not base.is_dir():
        raise UsageError(
            f"there is no folder {args.base}\nhint: `motet compare data=digits` makes runs/; or mkdir it"
        )
    loopback = is_loopback(args.host)
    changes = not args.read_only and (loopback or args.changes)
    names = {n.lower() for n in args.name} | (
        {"localhost", "127.0.0.1", "::1"} if loopback else {args.host.lower()}
    )
    access = Access(frozenset(names), changes, private=bool(args.kit))
    kits = [Path(kit).resolve() for kit in args.kit]
    with bound(args.host, args.port) as listening:
        port = listening.getsockname()[1]
        shown = f"[{args.host}]" if ":" in args.host else args.host
        say(f"dashboard: http://{shown}:{port}/\nruns:      {base}")
        say(f"token:     {token_line(access)}")
        if not loopback:
            say(
                "note: other machines can see it, and it is not encrypted; put it behind TLS or use an ssh tunnel"
            )
        serve(Dashboard(RunIndex(base, kits), access), args.host, port, [listening])


def token_line(access: Access) -> str:
    """The token and what it is good for."""
    may = ["look, as kits are for their owners"] * access.private + [
        "start, stop and promote"
    ] * access.changes
    if not may:
        return "none: this dashboard shows, and changes nothing"
    return f"{access.token}\n           (whoever has it may {'; '.join(may)})"


def bound(host: str, port: int) -> socket.socket:
    """The socket, before anything is said about it."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as e:
        raise UsageError(f"cannot listen at {host}:{port}: {e}\nhint: another port: motet ui --port 0") from e


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
    (True, False, True)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
