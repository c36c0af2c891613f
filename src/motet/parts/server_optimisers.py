"""Optimisers of the server: what it makes of the mean of clients' models, beyond taking it.

Reddi et al. 2021, "Adaptive Federated Optimization". The difference Delta of the mean to the server's model x is
taken for a negative gradient. `ServerOptimiser` goes before a method whose server's state is the model that clients'
replies are averaged into: FedAvg, FedProx, FedPer, Ditto and others.
Knows the server's model and the mean. Does not know what clients do.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from motet.client.batchnorm import with_statistics_of
from motet.core import Client, Method, MethodUnfit, Positive, Talk, Tree, Turn
from motet.settings import AUTO
from motet.vec import Vec

ServerOptimiserName = Literal["momentum", "adagrad", "adam", "yogi"]
Beta = Annotated[float, "0 to 1"]
_USUAL = {"momentum": 1.0}  # of server_lr
_ADAPTIVE = 0.03


class ServerOptimiser(Method):
    """Settings and round of a method whose server moves its model by an optimiser instead of taking the mean."""

    strength = "server_lr"
    server_optimiser: ServerOptimiserName = "adam"  # how the server moves towards the mean of clients' models
    server_lr: Annotated[float, "> 0", "auto"] = (
        _ADAPTIVE  # step size of the server (eta); auto = 1 for momentum, 0.03 for the others
    )
    beta1: Beta = 0.9  # share of the previous direction in the new one; momentum: its factor
    beta2: Beta = 0.99  # adam, yogi: share of the previous squares
    tau: Positive = 0.001  # all but momentum: adaptivity; small changes of a weight are divided by no less

    @classmethod
    def filled(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        usual = _USUAL.get(settings["server_optimiser"], _ADAPTIVE)
        return super().filled(settings) | ({"server_lr": usual} if settings["server_lr"] == AUTO else {})

    @classmethod
    def around(cls, base: type[Method]) -> type[Self]:
        """The same server around another method."""
        own = vars(ServerOptimiser)["__annotations__"]
        if there := [k for k in own if k in getattr(base, "__dataclass_fields__", {})]:
            raise MethodUnfit(
                f"{base.__name__} has {', '.join(there)} of its own: its server already takes steps.\n"
                "hint: put fedopt around a method whose server takes the mean, say fedper+fedopt"
            )
        said = {
            "__doc__": f"{base.__doc__}\n    With {cls.__name__} at the server.",
            "__module__": base.__module__,
        }
        more: dict[str, Any] = {"strength": base.strength} if base.strength else {}
        if own_steps := vars(base).get("private_steps"):  # what its server does sees no rows
            more["private_steps"] = own_steps
        return type(f"{base.__name__}{cls.__name__}", (ServerOptimiser, base), said | more)

    def start(self, turn: Turn) -> Tree | Talk:
        x = super().start(turn)
        if inspect.isgenerator(x) or not isinstance(x, Vec):
            raise MethodUnfit(
                f"fedopt moves one model towards the mean of clients' models, and the server of "
                f"{type(self).__name__} keeps something else.\nhint: fedavg, fedprox, fedper or ditto, say "
                "method=fedper+fedopt"
            )
        return {"x": x, "m": x.zeros(), "v": x.zeros() + self.tau**2}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        mean = yield from super().round(s["x"], turn)
        m, v, x = self.moved(s, mean)
        return {"x": with_statistics_of(x, mean), "m": m, "v": v}

    def moved(self, s: Tree, mean: Vec) -> tuple[Vec, Vec, Vec]:
        """m_t, v_t and x_t+1 of Algorithm 2."""
        x, m, v, eta = s["x"], s["m"], s["v"], self.server_lr
        delta = mean - x
        if self.server_optimiser == "momentum":
            # x + eta (beta1 m + Delta), counted from the mean: with eta 1 and beta1 0 it is the mean to the bit
            return self.beta1 * m + delta, v, mean + ((eta - 1) * delta + eta * self.beta1 * m)
        m = self.beta1 * m + (1 - self.beta1) * delta
        v = self.squares(v, delta * delta)
        return m, v, x + (eta * m).map(lambda a, b: a / (b.sqrt() + self.tau), v)

    def squares(self, v: Vec, new: Vec) -> Vec:
        """v_t from v_t-1 and Delta squared."""
        if self.server_optimiser == "adagrad":
            return v + new
        if self.server_optimiser == "yogi":
            return v - (1 - self.beta2) * new.map(lambda a, b: a * (b - a).sign(), v)
        return self.beta2 * v + (1 - self.beta2) * new

    # ---- what the method around which this is put sees of the state ----

    def global_model(self, s: Tree) -> Tree | None:
        return super().global_model(s["x"])

    def download(self, s: Tree, client: Client) -> Tree:
        return super().download(s["x"], client)

    def after_visit(self, before: Tree, after: Tree) -> Tree:
        return before | {"x": super().after_visit(before["x"], after["x"])}

    def metrics(self, s: Tree) -> dict[str, float]:
        return super().metrics(s["x"])

    def summary(self, s: Tree) -> dict[str, Any]:
        return super().summary(s["x"])

    def log(self, before: Tree, after: Tree) -> str:
        return super().log(before["x"] if before else (), after["x"])
