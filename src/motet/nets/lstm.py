"""A recurrent network that predicts the next symbol of a text.

Knows codes of symbols. Does not know the alphabet.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from motet.client.activations import is_recording, record
from motet.nets.layers import Shape, chain, no_codes, refuse, too_few


def lstm(
    shape: Shape,
    outputs: int,
    *,
    embedding: int = 8,  # length of a symbol's embedding
    hidden: int = 100,  # units of each LSTM layer
    layers: int = 2,  # number of LSTM layers
    symbols: int = 0,  # number of different symbols; 0 = as many as outputs
) -> nn.Module:
    """LEAF's network for Shakespeare (Caldas et al. 2018): an example is a row of codes 0, 1, 2, ..."""
    wrong = too_few(embedding=embedding, hidden=hidden, layers=layers)
    refuse("lstm", wrong + no_codes(shape, symbols))
    return chain(
        codes=Embedding(symbols or outputs, embedding),
        lstm=LastStep(embedding, hidden, layers, batch_first=True),
        head=nn.Linear(hidden, outputs),
    )


class Embedding(nn.Embedding):
    """Takes codes of any type: integers, bytes or whole floats."""

    def forward(self, codes: Tensor) -> Tensor:
        return super().forward(codes.long())


class LastStep(nn.LSTM):
    """An LSTM that returns its last step, and that uses the weights it has when it is called.

    nn.LSTM keeps a second list of its weights, which still holds the old ones after others are put in their
    place. While activations are recorded (client/activations.py), it records its gates at each step.
    """

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        layers = [[getattr(self, name) for name in names] for names in self._all_weights]
        weights = [w for layer in layers for w in layer]
        if is_recording() or any(map(torch._C._functorch.is_functorch_wrapped_tensor, [x, *weights])):
            return _in_plain_steps(x, layers)  # vmap has no rule for torch.lstm
        start = x.new_zeros(self.num_layers, x.shape[0], self.hidden_size)
        steps: Tensor = torch.lstm(
            x, (start, start), weights, True, self.num_layers, 0.0, self.training, False, True
        )[0]  # (examples, steps, hidden)
        return steps[:, -1]


def _in_plain_steps(x: Tensor, layers: list[list[Tensor]]) -> Tensor:
    """torch.lstm written out. `x` has shape (examples, steps, width)."""
    for of_x, of_h, bias_x, bias_h in layers:
        given = x @ of_x.T + (bias_x + bias_h)
        h = c = x.new_zeros(x.shape[0], of_h.shape[1])
        steps, gates = [], []
        for now in given.unbind(1):
            # in torch's order of the gates
            input_gate, forget_gate, cell, output_gate = (now + h @ of_h.T).chunk(4, -1)
            gates.append((input_gate, forget_gate, output_gate))
            c = forget_gate.sigmoid() * c + input_gate.sigmoid() * cell.tanh()
            h = output_gate.sigmoid() * c.tanh()
            steps.append(h)
        x = torch.stack(steps, 1)
        for gate in zip(*gates, strict=True):
            record(torch.stack(gate, -1))  # (examples, hidden, steps); zero is half open
    return x[:, -1]
