"""Mixtures of clients' heads: how much each client should take from the heads of others.

Xu et al. 2023 (FedPAC): the error of a mixture of heads is how far the mixed features of classes are from the
client's own (bias), plus what chance there is in the means of features of those who are mixed (variance).
Knows means of features. Does not know where they come from, nor what heads are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mixtures(h: Tensor, v: Tensor) -> Tensor:
    """The weights alpha (m, m), rows that are not negative and add up to 1, of m clients with mean features
    h (m, numbers) of variances v (m,): row i is the least of |h_i - sum_j alpha_j h_j|^2 + sum_j v_j alpha_j^2.

    Client 0 is like client 1 and both are uncertain, client 2 is far away:
    >>> mixtures(torch.tensor([[0.0], [0.0], [9.0]]), torch.tensor([1.0, 1.0, 1.0]))[0].mul(100).round().tolist()
    [50.0, 50.0, 1.0]
    """
    many, products = len(h), (h.double() @ h.double().T).numpy()
    spread = np.diag(np.maximum(v.double().numpy(), 1e-12 * max(products.max(), 1e-12)))
    ones = np.ones((many, many))
    found = []
    for i in range(many):
        cross = products[i][:, None] * ones
        found.append(least_square(products + products[i, i] - cross - cross.T + spread))
    return torch.from_numpy(np.stack(found))


def least_square(P: np.ndarray) -> np.ndarray:
    """The weights alpha that make alpha' P alpha the least, where none is negative and they add up to 1.

    y' P y + (sum y - 1)^2 over all y that are not negative has its least value at a multiple of alpha, whatever the
    scale: so the question is one of least squares without negative numbers.
    """
    from scipy.optimize import nnls

    scale = np.trace(P) / len(P)
    root = np.linalg.cholesky(P / scale + 1.0)  # root root' = P / scale + 1 1'
    y, _ = nnls(root.T, np.linalg.solve(root, np.ones(len(P))))
    alpha: np.ndarray = y / y.sum()
    return alpha
