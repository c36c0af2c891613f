"""The files that README and guides call a reader's own, made small: tables, images, texts, modules, a network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

WORDS = ["goal", "match", "team", "coach", "bank", "market", "oil", "price", "the", "a", "of", "in"]
WARDS = ("hospital-3", "mercy", "north", "south")
MODULE = """
import numpy as np
import torch


def load():
    draw = np.random.default_rng(0)
    made = lambda: (draw.standard_normal((40, 3)).astype("float32"), draw.integers(0, 2, 40))
    return {name: made() for name in ("east", "west", "north")}


def build(shape, outputs, width: int = 4):
    inputs = int(np.prod(shape))
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, width), torch.nn.Linear(width, outputs))
"""
RECIPE = 'seed = 0\n[method]\nname = "finetune"\n[train]\nrounds = 2\n[guard]\nmasked = true\n'
STUDY = 'methods = ["fedavg"]\n[data]\nname = "wine"\nclients = 3\n[train]\nrounds = 1\n'


def make_files(folder: Path) -> None:
    """All of them."""
    make_tables(folder)
    make_images(folder)
    make_texts(folder)
    make_folders_of_others(folder)
    (folder / "my_module.py").write_text(MODULE)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "study.toml").write_text(STUDY)


def make_tables(folder: Path) -> None:
    draw = np.random.default_rng(0)
    many = 240
    x = draw.standard_normal((many, 2))
    frame = pd.DataFrame({"age": (50 + 10 * x[:, 0]).round(2), "dose": x[:, 1].round(3)})
    who = np.array(WARDS)[np.arange(many) % len(WARDS)]
    ill = x.sum(1) + draw.standard_normal(many) > 0
    outcome = np.where(ill, "ill", "well")
    frame.assign(outcome=outcome, hospital=who).to_csv(folder / "patients.csv", index=False)
    frame.assign(outcome=outcome).to_parquet(folder / "patients.parquet")
    times = {"days": draw.integers(20, 900, many), "died": draw.integers(0, 2, many), "hospital": who}
    frame.assign(**times).to_csv(folder / "survivors.csv", index=False)
    counts = {"visits": draw.poisson(3, many), "cost": (900 + 90 * x[:, 0]).round(1), "hospital": who}
    frame.assign(**counts).to_csv(folder / "wards.csv", index=False)
    survey = {"employed": outcome == "ill", "region": who, "w": draw.uniform(0.5, 3, many).round(2)}
    frame.assign(**survey).to_csv(folder / "survey.csv", index=False)
    frame.head().to_csv(folder / "new.csv", index=False)
    (folder / "hospitals").mkdir()
    for name in WARDS:
        frame[who == name].assign(outcome=outcome[who == name]).to_csv(
            folder / f"hospitals/{name}.csv", index=False
        )


def make_images(folder: Path) -> None:
    from PIL import Image

    draw = np.random.default_rng(0)
    places = [f"pets/{c}" for c in ("cat", "dog")]
    places += [f"scans/{h}/{c}" for h in WARDS[:2] for c in ("ill", "well")]
    for place in places:
        (folder / place).mkdir(parents=True)
        for k in range(150 if "pets" in place else 12):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{k}.png")


def make_texts(folder: Path) -> None:
    """A table of texts, and a folder as a pretrained network is published."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, 5)) for _ in range(120)]
    news = {"text": texts, "topic": np.where(np.arange(120) % 2, "sport", "money"),
            "publisher": draw.choice(["post", "times"], 120)}  # fmt: skip
    pd.DataFrame(news).to_csv(folder / "news.csv", index=False)
    pd.DataFrame({"text": texts[:5]}).to_csv(folder / "new_texts.csv", index=False)


def make_network(folder: Path) -> None:
    """A pretrained network with weights at random, and its tokenizer."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def make_folders_of_others(folder: Path) -> None:
    """LEAF's and PFLlib's."""
    draw = np.random.default_rng(0)
    leaf, pfllib = folder / "leaf/femnist/data", folder / "PFLlib/dataset/Cifar10"
    for part, many in (("train", 20), ("test", 6)):
        (leaf / part).mkdir(parents=True)
        (pfllib / part).mkdir(parents=True)
        y = [i % 3 for i in range(many)]
        users = {f"writer_{u}": {"x": draw.random((many, 16)).tolist(), "y": y} for u in range(3)}
        content = {"users": list(users), "num_samples": [many] * 3, "user_data": users}
        (leaf / part / "all.json").write_text(json.dumps(content))
        for client in range(3):
            x = draw.normal(size=(many, 1, 4, 4)).astype(np.float32)
            np.savez_compressed(pfllib / part / f"{client}.npz", data={"x": x, "y": np.array(y)})
