"""What a letter may name at a site: verbs, methods and networks of the site's own installed motet, no others.

Knows names. Does not know data, nor who asks.
"""

from __future__ import annotations

from collections.abc import Iterator

from motet import nets
from motet.client import Task
from motet.core import Method, Tree, Verb, is_verb
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.runs import recipe as recipes
from motet.runs.recipe import Recipe
from motet.vec import Vec


def find_verb(method: Method, name: str) -> Verb:
    """A verb of the method by its name; nothing else of it can be called, nor what every method has."""
    found = getattr(type(method), name, None) if name.isidentifier() else None
    if not callable(found) or not is_verb(found) or hasattr(Method, name):
        raise RefusedByPolicy(f"{name!r:.80} is no verb of {type(method).__name__}")
    bound: Verb = getattr(method, name)
    return bound


def verbs_of(method: type[Method]) -> list[str]:
    own = [k for k in dir(method) if not k.startswith("_") and not hasattr(Method, k)]
    return [k for k in own if is_verb(getattr(method, k))]


def read_recipe(given: Tree, policy: Policy) -> Recipe:
    """The recipe that a letter holds. It names things of this site's own motet; what would import modules
    by name is refused, unless the site's owner trusts it."""
    sections = isinstance(given, dict) and set(given) == {"method", "net", "seed"}
    if not sections or not all(isinstance(given[k], dict) for k in ("method", "net")):
        raise RefusedByPolicy("the letter's recipe must have the sections method and net, and a seed")
    words = [w for part in (given["method"], given["net"]) for v in part.values() for w in _texts(v)]
    if odd := [w for w in words if ":" in w and w not in policy.trusted]:
        raise RefusedByPolicy(
            f"{odd[0]!r:.80} would import a module, and this site's policy does not trust it"
        )
    if given["net"].get("weights") or any("weights=" in w for w in words):
        raise RefusedByPolicy(
            "net.weights names a file, and nobody but this site's owner may name files of this site"
        )
    return recipes.check(given)


def _texts(v: Tree) -> list[str]:
    if isinstance(v, list | tuple):
        return [w for item in v for w in _texts(item)]
    return [v] if isinstance(v, str) else []


def check_weights(method: Method, sent: Tree) -> None:
    """Weights of a network that came in a letter must have the network's shapes."""
    known = networks(method)
    for vec in _vecs(sent):
        for name, v in vec.items():
            shapes = {tuple(w[name].shape) for w in known if name in w}
            if shapes and tuple(v.shape) not in shapes:
                want = " or ".join(map(str, sorted(shapes)))
                raise RefusedByPolicy(
                    f"weight {name!r:.80} has shape {tuple(v.shape)}; this network's has {want}"
                )


def networks(method: Method) -> list[Vec]:
    """The first weights of the method's network, and of those that its settings name."""
    task: Task = method.task
    named = {v for v in vars(method).values() if isinstance(v, str) and v in nets.names()}
    return [task.w0, *(task.other(name).w0 for name in sorted(named) if task.build)]


def _vecs(tree: Tree) -> Iterator[Vec]:
    if isinstance(tree, Vec):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _vecs(item)
