"""FedOpt: FedAvg with an optimiser at the server."""

from __future__ import annotations

from motet.methods.fedavg import FedAvg
from motet.parts.server_optimisers import ServerOptimiser


class FedOpt(ServerOptimiser, FedAvg):
    """FedOpt: the server takes the mean change of clients' models for a gradient, and an optimiser makes the step.

    Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2: FedAdagrad, FedAdam and FedYogi, without bias
    correction and with v starting at tau^2; and FedAvgM (Hsu et al. 2019, "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification") with `server_optimiser = "momentum"`. Momentum with beta1 0 and
    server_lr 1 is FedAvg. The steps are in parts/server_optimisers.py.
    The same server goes around other methods that average one model: method=fedper+fedopt, fedprox+fedopt,
    ditto+fedopt. What clients do, send and keep is theirs.
    Differs from the paper: replies are weighted by numbers of examples, as in FedAvg, where Algorithm 2 takes the
    simple mean. FLamby's FedAdam, FedAdagrad and FedYogi weight as we do, and differ from the paper in v, which
    starts at 0, so that the first steps are larger, and in beta2, which is 0.999.
    """

    private_steps = FedAvg.private_steps
