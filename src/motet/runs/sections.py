"""The sections of a recipe that are the same for every run: train, guard, engine, save.

Comments behind the fields are what people read in a recipe. Knows no data set, network or method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from motet.core import Count, NotNegative, Positive, Share

Half = Annotated[float, "0 to 0.5"]
PositiveShare = Annotated[float, "above 0, up to 1"]
Whole = Annotated[int, ">= 0"]
Inside = Annotated[float, "above 0 and below 1"]
Below1 = Annotated[float, "0 or more, below 1"]


@dataclass(frozen=True)
class StartSettings:
    """The initial weights, for any network."""

    weights: str = ""  # a .safetensors file with the initial weights, say a run's global model; "" = random


@dataclass(frozen=True)
class LossSettings:
    """What training minimises, for any network."""

    loss: str = (
        "auto"  # cross_entropy, focal | squared, absolute, quantile, poisson | cox, or module:function;
        # auto = cross_entropy for classes, squared for numbers, cox for survival
    )
    class_weights: str | list[float] = (
        "none"  # of the classes in the loss: none, balanced (n / (classes * rows of the class)), or numbers
    )
    gamma: NotNegative = 2.0  # focal only: how little rows count that are right already; 0 = cross_entropy
    quantile: Inside = 0.5  # quantile only: the share of the targets that is below the prediction


@dataclass(frozen=True)
class TrainSettings:
    """How long to train, with which clients, and which round is reported."""

    rounds: Count = 200  # communication rounds, at most
    cohort: float = 1.0  # clients in a round: a share of them (up to 1), or their number (2 and more)
    evaluate: Whole = 0  # rounds between two evaluations; 0: so many that they cost about a tenth of training
    evaluate_clients: Whole = 0  # clients that are scored, a sample; 0 = all, or 1,000 of 10,000 and more
    metric: str = (
        "auto"  # what chooses the round and is shown: accuracy, auc, loss, …, rmse, …, or module:function;
        # auto = accuracy, auc where a class is rare, rmse for numbers, cindex for survival
    )
    patience: int = 50  # stop after so many rounds without a better validation score; 0 = never
    report: Literal["best", "last"] = "best"  # the round to report: the best on validation, or the last
    within: NotNegative = (
        1.0  # rounds so many standard errors below the best score are as good; the loss decides
    )
    by: Literal["personal", "global", "both"] = (
        "personal"  # models whose validation score decides; both: their mean, and stop when neither improves
    )
    after_training: bool = (
        False  # also score clients' models right after local training; costs a second training
    )


@dataclass(frozen=True)
class GuardSettings:
    """What replies go through when they leave, robust aggregation, and simulated attacks to test it with."""

    mean: Literal["mean", "median", "trimmed", "krum"] = (
        "mean"  # how replies are averaged; all but mean show the server every single reply
    )
    trim: Half = 0.2  # trimmed only: share of the values that is left out at each end, by coordinate
    mix: bool = True  # median and trimmed only: first average each reply with its nearest neighbours
    hostile: Half = 0.2  # krum and mix: assumed share of hostile replies
    chosen: int = 0  # krum only: replies that are averaged; 1 = Krum, more = multi-Krum, 0 = all but hostile
    clip: NotNegative = (
        0.0  # longest update that leaves a client (L2 norm); longer ones are cut to it; 0 = any
    )
    bits: Literal[32, 8] = 32  # of each number of an update; 8 = rounded at random, errors are sent later
    top: PositiveShare = (
        1.0  # share of an update's numbers that leaves, the largest ones; others are sent later
    )
    masked: bool = False  # secure aggregation: the server learns the sum of replies and no single one
    mask_bits: Literal[64, 32] = 64  # masked only: of each number; 32 halves the bytes and rounds more
    mask_range: Positive = 1024.0  # masked only: largest absolute value of a number in a reply
    min_in_sum: Count = 3  # masked only: fewest replies in a sum; asks to fewer clients fail
    attack: Literal["none", "nan", "zero", "flip", "idle", "replay", "noise", "inflate"] = (
        "none"  # simulated: attackers send nan, zeros, their update flipped, no update, the last round's, noise, or
        # say that they have ten times their examples
    )
    attackers: Share = 0.2  # share of the clients that attack, drawn by the seed

    @property
    def learns(self) -> str:
        """What the server learns beyond what the method asks for."""
        return "" if self.mean == "mean" else f"every reply of averaged asks ({self.mean})"

    @property
    def compresses(self) -> bool:
        """Whether a part of an update stays at its client, to leave later."""
        return self.bits != 32 or self.top < 1


@dataclass(frozen=True)
class PrivacySettings:
    """Differential privacy: whom it protects, how much it may cost, and the noise."""

    level: Literal["none", "example", "client"] = (
        "none"  # what is protected: one training row of a client (DP-SGD), or a client with all its rows
    )
    epsilon: NotNegative = (
        0.0  # budget of each client in this run; the noise follows from it; 0 = noise_multiplier is given
    )
    delta: Below1 = (
        0.0  # with it; 0 = the largest power of ten up to 1 / (10 n), n rows (level client: clients)
    )
    noise_multiplier: NotNegative = 0.0  # noise as a multiple of the clipping length; 0 = as epsilon needs
    max_grad_norm: Positive = 1.0  # level example: longest gradient of one example; longer ones are cut to it
    accountant: Literal["auto", "rdp", "prv"] = (
        "auto"  # level example: how steps are counted, as in Opacus; auto = the smaller bound
    )
    noise: Literal["server", "clients"] = (
        "server"  # level client: who adds noise to the sum: a trusted server, or each client its share of it
    )
    sampling: Literal["fixed", "poisson"] = (
        "fixed"  # level client: fixed = cohorts of one size, each round counts fully; poisson = a secret draw
    )
    clip_quantile: Share = (
        0.0  # level client: share of updates that the clip should leave whole, to which it adapts; 0 = fixed
    )
    ledger: str = (
        ""  # a file in which runs on the same data add up what clients spent; "" = each run by itself
    )
    ledger_epsilon: NotNegative = (
        0.0  # with ledger: most that a client may spend over all its runs, else a run is refused; 0 = any
    )

    @property
    def on(self) -> bool:
        return self.level != "none"


OF_LEDGER = (
    "ledger",
    "ledger_epsilon",
)  # settings of privacy that change no result, and stay with a simulation
NEW_IN_GUARD = (
    "clip",
    "bits",
    "top",
    "mask_bits",
    "mask_range",
    "min_in_sum",
)  # what sites must know of a recipe's guards
GUARDS_AT_SITES = ("clip", "bits", "top", "masked", "mask_bits", "mask_range", "min_in_sum")
# runs of the version before these are found again


@dataclass(frozen=True)
class EngineSettings:
    """How clients are simulated. What `auto` comes to is decided when a run starts, and kept."""

    name: Literal["auto", "loop", "vmap", "threads", "ray"] = (
        "auto"  # auto = what suits the network; ray = clients live in the processes of your own Ray cluster
    )
    inner: Literal["auto", "loop", "vmap", "threads"] = (
        "auto"  # ray only: the engine in each of its processes; auto = what suits the network
    )
    address: str = (
        ""  # ray only: "" = a cluster on this machine, started and ended with the run; auto = the one that runs
        # here or that RAY_ADDRESS names; or HOST:PORT; changes no result
    )
    actors: int = 0  # ray only: processes that hold clients; 0 = one for each CPU; changes no result
    chunk: int = 0  # vmap only: clients that are stacked at once; 0 = as memory allows
    compile: Literal["auto", "yes", "no"] = (
        "auto"  # vmap, and swarms on loop; auto = if the run is long enough to gain by it
    )
    device: str = (
        "cpu"  # where clients compute: cpu, cuda, cuda:1, mps; auto = a GPU if there is one; rounding differs
    )
    workers: int = 0  # threads, compiled vmap: number of threads; 0 = one for each core; changes no result
    keep: Literal["auto", "memory", "disk"] = (
        "auto"  # where clients' states are between rounds; auto = memory, if they fit; changes no result
    )


@dataclass(frozen=True)
class SaveSettings:
    """What is written besides the scores; changes no result."""

    models: Literal["all", "global", "none"] = "all"  # final models, each with a model card
    checkpoint: NotNegative = 5.0  # seconds between checkpoints; 0 = after every round


PLAIN: dict[str, type[Any]] = {
    "train": TrainSettings,
    "guard": GuardSettings,
    "privacy": PrivacySettings,
    "engine": EngineSettings,
    "save": SaveSettings,
}
