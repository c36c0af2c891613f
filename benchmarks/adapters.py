"""What leaves a client in a round of a pretrained network: its head, adapters and the head, or everything.

    python benchmarks/adapters.py

A vision transformer of the size of ViT-Tiny (12 layers of 192 numbers, images of 32 × 32) with weights at random: the
bytes do not depend on what it has learned. Two clients with ten images each, two rounds of each method; the bytes are
those of the run's record. Prints a table in Markdown.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import motet

SHAPES = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
WAYS = (
    ("fedavg", {"train": "head"}),
    ("fedavg", {"train": "lora", "rank": 8, "adapt": ["q_proj", "v_proj"]}),
    ("fedper", {"train": "lora", "rank": 8, "adapt": ["q_proj", "v_proj"]}),
    ("fedavg", {"train": "all"}),
)


def folder_of_a_network(folder: Path) -> Path:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    ViTModel(ViTConfig(**SHAPES, image_size=32, patch_size=4)).save_pretrained(folder)
    return folder


def images() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        f"c{k}": (rng.normal(size=(10, 3, 32, 32)).astype("float32"), np.arange(10) % 10) for k in range(2)
    }


def measured(net: str, method: str, options: dict[str, Any], out: Path) -> str:
    run = motet.run(
        data=images(), net={"name": net, **options}, method={"name": method, "lr": 0.01}, rounds=2,
        engine="loop", out=out,
    )  # fmt: skip
    words = " ".join(f"net.{k}={','.join(v) if isinstance(v, list) else v}" for k, v in options.items())
    kib = run.rounds["up"].iloc[-1] / 2 / 1024
    return f"| `method={method} {words}` | {kib:,.1f} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        net = f"hf:{folder_of_a_network(Path(place) / 'vit')}"
        rows = [measured(net, *way, Path(place) / str(i)) for i, way in enumerate(WAYS)]
    print("| settings | KiB up, each client and round |\n| --- | ---: |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
