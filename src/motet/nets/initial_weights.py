"""Initial weights of a net from a safetensors file, for example the global model of an earlier run.

Knows files of named tensors. Does not know runs, or what the net is for.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from torch import nn

from motet.client.thread_net import trained_weights
from motet.nets.layers import NetError


def fill(net: nn.Module, file: str) -> nn.Module:
    """The net with the weights of the file. All that are trained must be there; frozen ones and buffers may be."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found = load(content(file))
    except SafetensorError as e:
        raise NetError(f"{file} holds no weights: {e}.\nhint: it must be a .safetensors file") from e
    own = {k: v for k, v in net.state_dict().items() if k in found} | trained_weights(net)
    shapes = [{k: tuple(v.shape) for k, v in part.items()} for part in (found, own)]
    if wrong := sorted(k for k in set(found) | set(own) if shapes[0].get(k) != shapes[1].get(k)):
        there, here = (s.get(wrong[0], "absent") for s in shapes)
        raise NetError(
            f"the weights in {file} are of another net: {len(wrong)} tensors differ, {wrong[0]} is {there} "
            f"in the file and {here} in the net.\nhint: use the net, with its options, that they were saved from"
        )
    net.load_state_dict(found, strict=False)  # all but num_batches_tracked, which nothing reads
    return net


def digest(file: str) -> str:
    """sha256 of the file's content, which tells two files of one name apart."""
    return sha256(content(file)).hexdigest()


def content(file: str) -> bytes:
    path = Path(file).expanduser()
    if not path.is_file():
        raise NetError(
            f"there are no weights {file}: the file does not exist.\n"
            "hint: a run writes global.safetensors into its folder; `motet export RUN CLIENT` writes a client's model"
        )
    return path.read_bytes()
