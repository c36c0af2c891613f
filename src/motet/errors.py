"""The errors that are meant for people. Each says what is wrong, what was given, what would be right.

    MotetError
    ├── UntrustedCode        code that a file names, and that nobody said may run
    ├── RecipeError          a recipe or a keyword that is wrong; all faults at once (also ValueError)
    ├── DataError            data that cannot be read or used (also ValueError)
    ├── NetError             a network that cannot be built as asked (also ValueError)
    ├── MethodUnfit          a method that cannot work on this task (also ValueError)
    ├── MetricFailed         a metric of the user's own that gave no score
    ├── RunError             a run that cannot start, continue or end
    │   ├── Damaged          stored bytes that are not as they were written
    │   └── Diverged         a run whose training diverged
    ├── Stopped              a run that was stopped; the same call continues it
    ├── NoReply              nobody, or too few clients, answered an ask
    │   └── AllRefused       clients answered, and no reply can be used (also VerbFailed)
    ├── MethodFailed         code of a method failed
    │   └── VerbFailed       a verb failed at a client
    ├── TooFew               fewer sites answered than a round needs
    ├── ModelRefused         a published model that is not used (also ValueError)
    ├── UnusableReplies      replies of sites that cannot be what was asked for
    ├── WireError            bytes that are no message, or a tree that cannot be sent (also ValueError)
    ├── FederationError      something is wrong with a federation of organisations
    │   └── Unreachable      the server of a federation does not answer
    ├── PolicyError          a site's policy that cannot be read (also ValueError)
    ├── RefusedByPolicy      something that a site's policy forbids
    ├── EncryptedStateError  a site's encrypted state that cannot be read (also ValueError)
    └── UsageError           any other value that cannot be used where it was given (also ValueError)

Every class lives beside the code that raises it and is found here by its name:

>>> import motet
>>> try:
...     motet.run(data="digitz", rounds=1)
... except motet.errors.RecipeError as e:
...     print(str(e).splitlines()[0])
there is no data set 'digitz'.
>>> issubclass(motet.errors.DataError, motet.MotetError)
True

A package that only some users need is asked for by `need`, which names the extra of motet that brings it.

Knows names and where they live. Imports nothing until an error is asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, which do not read _PLACES
    from motet.client.metrics import MetricFailed as MetricFailed
    from motet.client.visit import MethodFailed as MethodFailed
    from motet.client.visit import VerbFailed as VerbFailed
    from motet.core import MethodUnfit as MethodUnfit
    from motet.core import NoReply as NoReply
    from motet.data.federated import DataError as DataError
    from motet.deploy.agreement.site_replies import UnusableReplies as UnusableReplies
    from motet.deploy.flare.credentials import Unreachable as Unreachable
    from motet.deploy.flare.kits import FederationError as FederationError
    from motet.deploy.site.policy import PolicyError as PolicyError
    from motet.deploy.site.policy import RefusedByPolicy as RefusedByPolicy
    from motet.deploy.site.storage import EncryptedStateError as EncryptedStateError
    from motet.engines.flare import TooFew as TooFew
    from motet.engines.loop import AllRefused as AllRefused
    from motet.nets.layers import NetError as NetError
    from motet.published.manifest import ModelRefused as ModelRefused
    from motet.runs.divergence import Diverged as Diverged
    from motet.runs.recipe_text import RecipeError as RecipeError
    from motet.trusted_code import UntrustedCode as UntrustedCode
    from motet.wire.format import WireError as WireError

_PLACES = {
    "motet.core": "MethodUnfit NoReply",
    "motet.data.federated": "DataError",
    "motet.deploy.agreement.site_replies": "UnusableReplies",
    "motet.deploy.flare.credentials": "Unreachable",
    "motet.deploy.flare.kits": "FederationError",
    "motet.deploy.site.storage": "EncryptedStateError",
    "motet.deploy.site.policy": "PolicyError RefusedByPolicy",
    "motet.engines.flare": "TooFew",
    "motet.client.metrics": "MetricFailed",
    "motet.client.visit": "MethodFailed VerbFailed",
    "motet.engines.loop": "AllRefused",
    "motet.nets.layers": "NetError",
    "motet.published.manifest": "ModelRefused",
    "motet.runs.divergence": "Diverged",
    "motet.runs.recipe_text": "RecipeError",
    "motet.trusted_code": "UntrustedCode",
    "motet.wire.format": "WireError",
}
__all__ = sorted(
    [*" ".join(_PLACES.values()).split(), "MotetError", "RunError", "Damaged", "Stopped", "UsageError"]
)


class MotetError(Exception):
    """An error meant for people: its message says what is wrong and what would be right."""


class RunError(MotetError):
    """A run that cannot start, continue or end; what it had is still there."""


class Damaged(RunError):
    """Stored bytes that are not as they were written; nothing is shown of them, and nothing goes on from them."""


class Stopped(MotetError):
    """Somebody stopped the run; the same command continues it."""


class UsageError(MotetError, ValueError):
    """A value that cannot be used where it was given."""


def need(what: str, extra: str, *packages: str, error: type[MotetError] = UsageError) -> None:
    """Refuse what needs packages that are not installed; none of them is imported.

    >>> need("a table of moons", "moons", "json", "luna")
    Traceback (most recent call last):
    motet.errors.UsageError: a table of moons needs luna, which is not installed
    hint: pip install 'motet[moons]'
    """
    if absent := [name for name in packages if find_spec(name) is None]:
        verb = "is" if len(absent) == 1 else "are"
        raise error(
            f"{what} needs {' and '.join(absent)}, which {verb} not installed\nhint: pip install 'motet[{extra}]'"
        )


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'motet.errors' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
