"""Pretrained networks from a local folder: what is trained and sent, what is refused, a run end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import motet
from motet.client import Batch, Data, Task, descend
from motet.core import MethodUnfit
from motet.nets import NetError, build
from motet.nets.frozen import FrozenEncoder
from motet.nets.given import copies_of
from motet.runs.recipe import method_class

transformers = pytest.importorskip("transformers")
WORDS = ["goal", "match", "team", "coach", "bank", "market", "oil", "price", "the", "a", "of", "in"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the official form, with weights at random."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def sizes(net: nn.Module) -> tuple[int, int]:
    """Weights that are trained, and all weights."""
    task = Task(net, "classes", 2)
    return sum(a.numel() for a in task.w0.values()), sum(p.numel() for p in net.parameters())


def test_only_the_head_or_adapters_and_the_head_travel(bert: Path) -> None:
    made = {
        t: build(f"hf:{bert}", {"train": t, "rank": 2}, (8,), 2, "classes", 0)
        for t in ("head", "lora", "all")
    }
    assert sizes(made["head"])[0] == 16 * 2 + 2
    # two layers, query and value: A is rank x 16, B is 16 x rank
    assert sizes(made["lora"])[0] == 2 * 2 * (2 * 16 + 16 * 2) + 34
    assert sizes(made["all"])[0] == sizes(made["all"])[1] == sizes(made["head"])[1]
    x = torch.randint(0, 14, (3, 8)).float()
    scores = [net.eval()(x) for net in made.values()]
    assert all(torch.allclose(scores[0], s, atol=1e-6) for s in scores[1:])  # adapters start at nothing
    assert Task(made["lora"], "classes", 2).head == ("head.weight", "head.bias")


def test_padding_changes_nothing_of_what_is_read(bert: Path) -> None:
    net = build(f"hf:{bert}", {}, (8,), 2, "classes", 0).eval()
    short, padded = torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[5.0, 6.0, 7.0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(net(short), net(padded))


def test_a_frozen_encoder_sees_each_row_once() -> None:
    seen: list[int] = []

    class Body(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    net = nn.Sequential(FrozenEncoder(Body(3, 4)), nn.Linear(4, 2))
    task, x = Task(net, "classes", 2), torch.eye(3)
    first, again = task.predict(task.w0, x), task.predict(task.w0, x.flip(0))
    assert torch.equal(first, again.flip(0)) and seen == [1, 1, 1] and not task.stackable


def test_features_of_a_frozen_encoder_have_the_same_bits_whatever_batch_needs_them_first() -> None:
    """So a run that goes on after a stop, and threads in any order, equal an undisturbed run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body, x = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 33)), torch.randn(64, 64)
    whole, apart = FrozenEncoder(body)(x), FrozenEncoder(body)
    assert torch.equal(torch.cat([apart(x[i : i + 1]) for i in range(64)]), whole)


def test_a_frozen_encoder_keeps_no_more_bytes_than_it_may_and_answers_all_the_same() -> None:
    body, x = nn.Linear(3, 4), torch.eye(3)
    small = FrozenEncoder(body, memory=2 * 4 * 4)
    for _ in range(2):
        torch.testing.assert_close(small(x), body(x))
    assert small.known.held == 2 * 4 * 4 and len(small.known.rows) == 2


def test_a_frozen_encoder_whose_weights_were_changed_between_runs_remembers_nothing_of_the_old() -> None:
    net = nn.Sequential(FrozenEncoder(nn.Linear(3, 4)), nn.Linear(4, 2))
    x, make = torch.eye(3), copies_of(net)
    before = make((3,), 2)(x)
    net[0].body.load_state_dict({"weight": torch.zeros(4, 3), "bias": torch.zeros(4)})
    assert torch.equal(copies_of(net)((3,), 2)[0](x), torch.zeros(3, 4))
    assert torch.equal(make((3,), 2)(x), before)


@pytest.mark.parametrize("statistics", [None, "averaged", "local", "shared"])
def test_batch_norm_of_a_frozen_encoder_stays_as_in_use_and_is_not_sent(statistics: str | None) -> None:
    body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    body[1].running_mean.fill_(0.5)
    net = nn.Sequential(FrozenEncoder(body), nn.Linear(4, 2))
    if statistics:
        net.statistics = statistics  # type: ignore[assignment]
    task, x = Task(net, "classes", 2), torch.eye(3)
    data = Data(
        x, torch.tensor([0, 1, 0]), torch.tensor(3), torch.tensor(0), Batch.of(x, torch.tensor([0, 1, 0]))
    )
    after = descend(task.loss, task.w0, data, lr=0.5, batch=3)
    assert list(after) == ["1.weight", "1.bias"]
    want = nn.functional.linear(body.eval()(x), after["1.weight"], after["1.bias"])
    torch.testing.assert_close(task.predict(after, x), want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "lora", "adapt": ["quary"]}, "(?s)no linear layer of that name.*hint: it has .*query"),
        ({"train": "lora", "rank": 0}, "(?s)rank 0.*hint: "),
        ({"adapt": ["query"]}, "(?s)net.train is head: only lora has adapters.*hint: "),
    ],
)
def test_bad_adapters_are_refused_before_training(bert: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(NetError, match=message):
        build(f"hf:{bert}", options, (8,), 2, "classes", 0)


def test_methods_that_need_a_body_say_how_more_of_a_frozen_network_is_trained() -> None:
    task = Task(nn.Sequential(FrozenEncoder(nn.Linear(5, 4)), nn.Linear(4, 2)), "classes", 2)
    with pytest.raises(MethodUnfit, match=r"(?s)nothing but the head .* is trained.*hint: .*net.train=lora"):
        method_class("fedproto")(task).check()
    assert "nothing but the head" in method_class("fedper")(task).remarks()[0]


def test_missing_weights_and_wrong_examples_are_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(NetError, match="(?s)the folder does not exist.*hint: fetch it once"):
        build(f"hf:{tmp_path}/nothing", {}, (8,), 2, "classes", 0)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(NetError, match="no .safetensors file"):
        build(f"hf:{tmp_path}", {}, (8,), 2, "classes", 0)
    with pytest.raises(NetError, match="(?s)does not take examples of shape.*hint: "):
        build(f"hf:{bert}", {}, (3, 8, 8), 2, "classes", 0)


def test_code_in_the_folder_of_a_network_never_runs_whatever_is_answered(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers itself would ask at a terminal, and run it on a yes."""
    (tmp_path / "weights.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    there = {"AutoConfig": "weights.Config", "AutoModel": "weights.Model"}
    config = json.loads((bert / "config.json").read_text()) | {"auto_map": there, "model_type": "theirs"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes())
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(NetError, match="cannot be read"):
        build(f"hf:{tmp_path}", {}, (8,), 2, "classes", 0)
    assert not (tmp_path / "ran").exists()


def test_images_go_through_a_pretrained_vit(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(tmp_path)
    net = build(f"hf:{tmp_path}", {}, (3, 8, 8), 5, "classes", 0)
    assert net(torch.zeros(2, 3, 8, 8)).shape == (2, 5) and sizes(net)[0] == 16 * 5 + 5


def test_texts_for_a_network_of_images_and_too_long_ones_are_refused(bert: Path, tmp_path: Path) -> None:
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    transformers.ViTModel(transformers.ViTConfig(**small)).save_pretrained(tmp_path)
    with pytest.raises(NetError, match="(?s)does not take examples of shape.*hint: "):
        build(f"hf:{tmp_path}", {}, (8,), 2, "classes", 0)
    with pytest.raises(NetError, match="(?s)does not take examples of shape.*hint: .*data.text_length"):
        build(f"hf:{bert}", {}, (999,), 2, "classes", 0)


def test_codes_that_a_pretrained_network_does_not_know_are_refused(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "news.csv").write_text("text,topic\nw1 w2,a\n")
    data = {"name": str(tmp_path / "news.csv"), "target": "topic", "text": "text"}
    for tokenizer in ({}, {"tokenizer": "hash"}):
        with pytest.raises(motet.MotetError, match="(?s)has learned other codes.*hint: data.tokenizer="):
            motet.run(data=data | tokenizer, net=f"hf:{bert}", method="fedavg", rounds=1, out=tmp_path / "r")


def test_adapters_are_learned_and_bytes_are_theirs_alone(bert: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    topic = rng.choice(["sport", "money"], 120)
    own = {"sport": WORDS[:4], "money": WORDS[4:8]}
    text = [" ".join(rng.permutation([*rng.choice(own[t], 3), *rng.choice(WORDS[8:], 3)])) for t in topic]
    frame = pd.DataFrame({"topic": topic, "who": [f"c{i % 3}" for i in range(120)], "text": text})
    frame.to_csv(tmp_path / "news.csv", index=False)
    data = {"name": str(tmp_path / "news.csv"), "target": "topic", "client": "who", "text": "text"}
    data |= {"text_length": 8, "tokenizer": str(bert)}
    sent: dict[str, int] = {}
    for train in ("lora", "all"):
        run = motet.run(
            data=data, net={"name": f"hf:{bert}", "train": train}, method={"name": "fedavg", "lr": 0.3},
            rounds=3, engine="loop", out=tmp_path / train,
        )  # fmt: skip
        sent[train] = int(run.rounds["up"].iloc[-1])
        assert any("weights" in note and "frozen" in note for note in run.facts["notes"]) == (train == "lora")
    model = motet.run(
        data=data, net=f"hf:{bert}", method={"name": "fedper"}, rounds=1, out=tmp_path / "h"
    ).model("c0")
    assert set(model.predict(frame)["prediction"]) <= {"sport", "money"}
    assert sent["lora"] < 0.3 * sent["all"]


@pytest.mark.parametrize("train", ["head", "lora", "all"])
def test_a_client_without_rows_gets_no_predictions_and_no_error(bert: Path, train: str) -> None:
    net = build(f"hf:{bert}", {"train": train}, (8,), 2, "classes", 0).eval()
    assert net(torch.zeros(0, 8)).shape == (0, 2)
