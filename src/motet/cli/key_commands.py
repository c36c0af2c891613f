"""The commands `motet federation ...` about keys and certificates: create, request, sign, accept, renew, revoke.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from motet.cli.command import Add, names, say

FEDERATION = "the convener's folder, which `create` wrote"


def key_commands(within: Add) -> None:
    convening(within)
    asking(within)
    ending(within)


def convening(within: Add) -> None:
    p = within("create", do_create, "found a federation: its authority, and the server's kit")
    p.add_argument("--name", required=True, help="of the federation")
    p.add_argument("--server", required=True, metavar="HOST", help="name by which sites reach the server")
    p.add_argument(
        "--sites", type=names, default=[], metavar="A,B,…",
        help="for trying out on one machine: make kits and the PRIVATE KEYS of these sites here too; "
        "organisations make their own keys with `request`",
    )  # fmt: skip
    p.add_argument(
        "--no-server", action="store_true", help="no server's kit: its operator sends a request too"
    )
    p.add_argument("--port", type=int, default=8002, help="the server's only open port (default: 8002)")
    p.add_argument("--to", metavar="FOLDER", help="where it is written (default: the federation's name)")
    _days(p)
    p.add_argument("--root-days", type=days, metavar="N", help="life of the root (default: 3650)")

    p = within(
        "add", do_add, "for trying out on one machine: kits for new sites, whose private keys are made here"
    )
    p.add_argument("folder", help=FEDERATION)
    p.add_argument("--sites", required=True, type=names, metavar="A,B,…")
    _days(p)

    p = within("sign", do_sign, "as the convener: certificates for signing requests")
    p.add_argument("folder", help=FEDERATION)
    p.add_argument(
        "requests", nargs="+", metavar="NAME.request", help="what `motet federation request` wrote"
    )
    p.add_argument(
        "--replace", action="store_true", help="the name has another key now; the old one is revoked"
    )
    _days(p)


def asking(within: Add) -> None:
    p = within("request", do_request, "as a party: make keys, which stay here, and a signing request")
    p.add_argument("name", help="the site's name, or `server`")
    p.add_argument("--to", metavar="KIT", help="the folder of the kit, new or in use (default: the name)")

    p = within(
        "accept", do_accept, "as a party: take a signed answer, or a newer list of revoked certificates"
    )
    p.add_argument("kit", help="where `request` made the keys, or a kit in use")
    p.add_argument("answer", metavar="NAME.signed", help="what the convener sent; or its revoked.pem")


def ending(within: Add) -> None:
    p = within("renew", do_renew, "as the convener: new certificates for the keys that parties have")
    p.add_argument("folder", help=FEDERATION)
    p.add_argument("parties", nargs="+", metavar="NAME", help="sites, or `server`")
    _days(p)

    p = within("revoke", do_revoke, "as the convener: a party's certificates are good no longer")
    p.add_argument("folder", help=FEDERATION)
    p.add_argument("party", metavar="NAME", help="a site, or `server`")


def days(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 36500:
        raise ValueError
    return number


def _days(p: Any) -> None:
    p.add_argument("--days", type=days, metavar="N", help="life of certificates (default: 730)")


def life(args: Any) -> dict[str, int]:
    given = {"days": args.days, "root_days": getattr(args, "root_days", None)}
    return {k: v for k, v in given.items() if v is not None}


def content_of(file: str, hint: str) -> bytes:
    from motet.deploy.flare.kits import FederationError

    try:
        return Path(file).read_bytes()
    except OSError as e:
        raise FederationError(f"{file} cannot be read: {e.strerror}\nhint: {hint}") from e


# ---- commands ----


def do_create(args: Any) -> None:
    from motet.deploy.flare.all_kits import create
    from motet.deploy.flare.authority import open_authority

    to = Path(args.to or args.name)
    for kit in create(
        args.name, args.server, args.sites, to, args.port, server_kit=not args.no_server, **life(args)
    ):
        print(kit)
    root = open_authority(to).signer
    say(f"\nkeep {to / 'authority'} to yourself: it signs. Its root has the fingerprint {_shown(root.root)}")
    if args.sites:
        say(
            "the private keys of all sites were made here: good for trying out on one machine\n"
            f"next:  motet federation serve {to / 'server'}\n"
            f"       motet federation join {to / args.sites[0]} --data FILE --target COLUMN"
        )
    else:
        say(
            f"next:  at each site: motet federation request NAME; here: motet federation sign {to} NAME.request"
        )


def do_add(args: Any) -> None:
    from motet.deploy.flare.all_kits import add

    for kit in add(Path(args.folder), args.sites, **life(args)):
        print(kit)


def do_request(args: Any) -> None:
    from motet.deploy.flare import certificates as certs
    from motet.deploy.flare.key_requests import make_request

    kit = Path(args.to or args.name)
    request = make_request(args.name, kit)
    print(request)
    for name, key in certs.read_requests(request.read_bytes()).items():
        say(f"the key of {name} has the fingerprint {certs.fingerprint(key)}")
    say(
        f"send {request} to the convener, and compare fingerprints on another channel; private keys stay in {kit}\n"
        f"next:  motet federation accept {kit} {args.name}.signed"
    )


def do_sign(args: Any) -> None:
    from motet.deploy.flare import certificates as certs
    from motet.deploy.flare.authority import open_authority

    authority = open_authority(Path(args.folder))
    for file in args.requests:
        content = content_of(file, "`motet federation request NAME` at the party writes NAME.request")
        answer = authority.sign(content, replace=args.replace, **life(args))
        for name, key in certs.read_requests(content).items():
            say(
                f"the key of {name} has the fingerprint {certs.fingerprint(key)}: compare it with {name}'s own"
            )
        _write_answer(Path(args.folder), answer)
    if args.replace:
        _publish_list(Path(args.folder))


def do_accept(args: Any) -> None:
    from motet.deploy.flare.authority import SignedAnswer
    from motet.deploy.flare.credentials import root_of
    from motet.deploy.flare.key_requests import accept, take_list
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.site.config import has_source

    content = content_of(args.answer, "`motet federation sign` at the convener writes NAME.signed")
    if content.startswith(b"-----BEGIN X509 CRL"):
        newer = take_list(open_kit(args.kit), content)
        say("the list was taken" if newer else "the kit has this list already, or a newer one")
        return
    kit = accept(Path(args.kit), SignedAnswer.read(content))
    print(kit.folder)
    command = f"motet federation {'serve' if kit.is_server else 'join'} {args.kit}"
    again = (kit.folder / "log.txt").exists() if kit.is_server else has_source(kit)
    command += "" if again or kit.is_server else " --data FILE --target COLUMN"
    say(
        f"the authority of {kit.federation} has the fingerprint {_shown(root_of(kit))}: compare it with what the "
        "convener says\n"
        f"next:  {command}"
        + ("; if it runs now, start it anew: it goes by the new certificate from then on" if again else "")
    )


def do_renew(args: Any) -> None:
    from motet.deploy.flare.authority import open_authority

    authority = open_authority(Path(args.folder))
    for party in args.parties:
        _write_answer(Path(args.folder), authority.renew(party, **life(args)))


def do_revoke(args: Any) -> None:
    from motet.deploy.flare.authority import open_authority

    many = open_authority(Path(args.folder)).revoke(args.party)
    say(
        f"{many} certificates of {args.party} were revoked"
        if many
        else f"{args.party} has none that is not revoked"
    )
    _publish_list(Path(args.folder))


def _write_answer(folder: Path, answer: Any) -> None:
    """The answer as a file beside the authority."""
    file = folder / f"{answer.party}.signed"
    answer.write(file)
    print(file)
    say(f"send it to {answer.party}; there: motet federation accept KIT {file.name}")


def _publish_list(folder: Path) -> None:
    """The list goes to the server, which tells sites; a server's kit that lies here gets it at once."""
    from motet.deploy.flare.authority import LIST
    from motet.deploy.flare.key_requests import take_list
    from motet.deploy.flare.kits import open_kit

    file = folder / "authority" / LIST
    print(file)
    if (folder / "server" / "motet.json").exists():
        take_list(open_kit(folder / "server"), file.read_bytes())
        say(
            f"{folder / 'server'} has the new list; a server that runs elsewhere: motet federation accept KIT {LIST}"
        )
    else:
        say(f"send it to the server; there: motet federation accept KIT {LIST}")


def _shown(cert: Any) -> str:
    from motet.deploy.flare import certificates as certs

    return certs.fingerprint(certs.public_key(cert))
