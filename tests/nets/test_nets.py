"""Single networks: sizes, options, BatchNorm's statistics, and errors with hints."""

import sys

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from motet.client import Batch, Task
from motet.client.thread_net import mixes_rows
from motet.errors import UsageError
from motet.nets import NetError, build, default_net
from motet.trusted_code import trust_names
from motet.vec import Vec

IMAGE = (3, 32, 32)


def size(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (1, 8, 8), {"hidden": [16, 8]}),
        ("mlp", (5,), {"hidden": []}),
        ("cnn", (1, 28, 28), {"channels": [4, 8], "hidden": 16, "kernel": 3}),
        ("resnet18", (1, 28, 28), {"stem": "imagenet", "groups": 8}),
        ("resnet34", (3, 16, 16), {"stem": "imagenet"}),
        ("resnet34", (3, 16, 16), {"width": 0.25}),
        ("mobilenet_v1", (1, 28, 28), {"width": 0.5, "stem": "imagenet", "groups": 8}),
        ("vgg11", (1, 28, 28), {"norm": "group", "width": 0.25}),
        ("lstm", (80,), {"symbols": 7}),
    ],
)
def test_with_other_options_a_net_is_a_task_whose_head_comes_last(name, shape, options):
    task = Task(build(name, options, shape, 4, "classes", 0), "classes", 4)
    x = torch.randint(0, 4, (3, *shape)) if name == "lstm" else torch.randn(3, *shape)
    assert task.predict(task.w0, x).shape == (3, 4)
    assert tuple(task.w0)[-2:] == task.head == ("head.weight", "head.bias")
    assert task.dense == (name == "mlp")


def test_logistic_starts_from_zero_and_linear_does_not():
    assert all((p == 0).all() for p in build("logistic", {}, (5,), 3, "classes", 0).parameters())
    assert all((p != 0).any() for p in build("linear", {}, (5,), 1, "numbers", 0).parameters())


def test_a_resnet_of_a_quarter_of_the_width_has_a_quarter_of_the_channels():
    narrow, whole = (build("resnet34", {"width": w}, IMAGE, 4, "classes", 0) for w in (0.25, 1.0))
    for small, large in zip(narrow.parameters(), whole.parameters(), strict=True):
        assert small.shape[0] in (large.shape[0], large.shape[0] // 4)
    assert narrow.head.in_features == 128


def test_the_cnn_is_mcmahans():
    net = build("cnn", None, (1, 28, 28), 10, "classes", 0)
    assert sum(p.numel() for p in net.parameters()) == 1_663_370  # the number in their paper


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [
        ("resnet18", {"stem": "imagenet"}, 11_689_512),
        ("resnet34", {"stem": "imagenet"}, 21_797_672),
        ("mobilenet_v1", {"stem": "imagenet"}, 4_231_976),
    ],
)
def test_for_imagenet_the_nets_have_the_known_numbers_of_parameters(name, options, known):
    for norm in ("batch", "group"):
        net = build(name, {"norm": norm, **options}, (3, 64, 64), 1000, "classes", 0)
        assert size(net) == known
        assert [k for k, _ in net.named_parameters()][-2:] == ["head.weight", "head.bias"]


def test_vgg11_has_the_known_number_of_parameters_before_its_head():
    for norm, more in (("none", 0), ("group", 2 * 2752), ("batch", 2 * 2752)):  # 2752 channels in all
        net = build("vgg11", {"norm": norm}, IMAGE, 10, "classes", 0)
        assert size(net.body) == 9_220_480 + more and size(net.head) == 5130


def test_the_lstm_has_as_many_parameters_as_counted_by_hand():
    net = build("lstm", {}, (80,), 80, "classes", 0)
    first, second = 4 * 100 * (8 + 100 + 2), 4 * 100 * (100 + 100 + 2)  # four gates, two biases each
    assert size(net) == 80 * 8 + first + second + (100 + 1) * 80 == 133_520


def test_mobilenet_scales_its_width_in_multiples_of_eight():
    for width, first, last in ((0.25, 8, 256), (0.5, 16, 512), (0.3, 8, 304), (0.01, 8, 8)):
        net = build("mobilenet_v1", {"width": width}, IMAGE, 10, "classes", 0)
        assert (net.stem.conv.out_channels, net.head.in_features) == (first, last)


@pytest.mark.parametrize(("stem", "pixels"), [("cifar", 2), ("imagenet", 1)])
def test_the_stem_decides_how_much_of_a_small_image_is_left(stem, pixels):
    net = build("mobilenet_v1", {"width": 0.25, "stem": stem}, IMAGE, 10, "classes", 0)
    assert net.pairs(net.stem(torch.randn(2, *IMAGE))).shape == (2, 256, pixels, pixels)


def batch_norms(net):
    return [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "mobilenet_v1", "vgg11"])
def test_only_nets_with_batchnorm_have_a_policy_for_statistics(name):
    assert not hasattr(build(name, {"norm": "group"}, IMAGE, 4, "classes", 0), "statistics")
    net = build(name, {"norm": "batch", "statistics": "local"}, IMAGE, 4, "classes", 0)
    assert net.statistics == "local" and net.training
    assert not any(isinstance(m, nn.GroupNorm) for m in net.modules())
    for m in batch_norms(net):  # checking the output has changed nothing
        assert (m.running_mean == 0).all() and (m.running_var == 1).all() and m.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet34", {"stem": "imagenet"}), ("mobilenet_v1", {"width": 0.5}), ("vgg11", {})],
)
def test_shared_statistics_normalise_noise_from_the_start(name, options):
    net = build(name, {"norm": "batch", "statistics": "shared", **options}, IMAGE, 4, "classes", 0)
    outputs = []
    for m in batch_norms(net):
        assert m.momentum == 0.1 and m.training
        m.register_forward_hook(lambda _m, _x, z: outputs.append(z.clone()))  # ReLU works in place
    net.eval()(torch.randn(64, *IMAGE, generator=torch.Generator().manual_seed(1)))  # not what was measured
    assert len(outputs) == len(batch_norms(net))
    for z in outputs:
        assert z.mean((0, 2, 3)).abs().mean() < 0.3 and 0.7 < z.var((0, 2, 3)).mean() < 1.5


def test_shared_statistics_depend_on_the_seed_alone():
    options = {"norm": "batch", "statistics": "shared", "width": 0.25}
    a, b, c = (build("mobilenet_v1", options, IMAGE, 4, "classes", s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert (a["stem.norm.running_var"] != c["stem.norm.running_var"]).any()
    weights = build("mobilenet_v1", options | {"statistics": "averaged"}, IMAGE, 4, "classes", 1)
    assert all(torch.equal(p, a[k]) for k, p in weights.named_parameters())


def test_without_normalisation_the_activations_of_vgg11_keep_their_size():
    net, outputs = build("vgg11", {}, IMAGE, 4, "classes", 0), []
    for name, layer in net.body.named_children():
        if name.startswith("relu"):
            layer.register_forward_hook(lambda _m, _x, z: outputs.append(z.pow(2).mean().sqrt()))
    net(torch.randn(8, *IMAGE, generator=torch.Generator().manual_seed(0)))
    assert len(outputs) == 8 and all(0.3 < size < 4 for size in outputs)


@pytest.fixture
def lstm():
    """A small LSTM as a task, two sets of weights, and rows of six codes for each of two clients."""
    g = torch.Generator().manual_seed(0)
    net = build("lstm", {"embedding": 3, "hidden": 5}, (6,), 4, "classes", 0)
    task = Task(net, "classes", 4)
    w = [task.w0, Vec({k: torch.randn(v.shape, generator=g) for k, v in task.w0.items()})]
    return task, w, torch.randint(0, 4, (2, 3, 6), generator=g, dtype=torch.uint8)


def test_the_lstm_is_torchs_with_the_weights_it_is_given(lstm):
    task, weights, x = lstm
    codes, layers, head = nn.Embedding(4, 3), nn.LSTM(3, 5, 2, batch_first=True), nn.Linear(5, 4)
    theirs = nn.ModuleDict({"codes": codes, "lstm": layers, "head": head})
    for w in weights:
        theirs.load_state_dict(dict(w))
        expected = head(layers(codes(x[0].long()))[0][:, -1])
        torch.testing.assert_close(task.predict(w, x[0]), expected)
    assert (task.predict(weights[0], x[0]) - task.predict(weights[1], x[0])).abs().max() > 0.1


def test_the_lstm_takes_codes_of_any_type(lstm):
    task, (w, _), x = lstm
    assert torch.equal(task.predict(w, x[0]), task.predict(w, x[0].long()))
    assert torch.equal(task.predict(w, x[0]), task.predict(w, x[0].float()))


def test_gradients_of_the_lstm_reach_every_weight_that_was_put_in(lstm):
    task, (_, w), x = lstm
    batch = Batch.of(x[0], torch.tensor([0, 1, 2]))
    u = Vec({k: v.clone().requires_grad_() for k, v in w.items()})
    slopes = dict(zip(u, torch.autograd.grad(task.loss(u, batch), list(u.values())), strict=True))
    assert all(s.abs().max() > 0 for s in slopes.values())
    by_hand = grad(lambda v: task.loss(v, batch))(w)
    for k, v in slopes.items():
        torch.testing.assert_close(v, by_hand[k])


def test_the_lstm_can_be_exported_for_any_number_of_examples(lstm):
    task, _, x = lstm
    anything = ({0: torch.export.Dim("examples")},)
    program = torch.export.export(task.net, (x[0],), dynamic_shapes=anything).module()
    rows = x.reshape(6, 6)
    torch.testing.assert_close(program(rows), task.net(rows))


def stacked(weights):
    return Vec({k: torch.stack([w[k] for w in weights]) for k in weights[0]})


def test_two_stacked_lstms_learn_like_one_after_the_other(lstm):
    task, weights, x = lstm
    y = torch.tensor([0, 1, 2])
    torch.testing.assert_close(
        vmap(task.predict)(stacked(weights), x),
        torch.stack([task.predict(w, rows) for w, rows in zip(weights, x, strict=True)]),
    )
    both = vmap(lambda w, rows: grad(lambda u: task.loss(u, Batch.of(rows, y)))(w))(stacked(weights), x)
    for i, w in enumerate(weights):
        alone = grad(lambda u, i=i: task.loss(u, Batch.of(x[i], y)))(w)
        for k in alone:
            torch.testing.assert_close(both[k][i], alone[k])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"stem": "imagenet"}),
        ("resnet34", {"stem": "imagenet"}),
        ("mobilenet_v1", {"width": 0.25, "stem": "imagenet"}),
        ("vgg11", {"norm": "group"}),
    ],
)
def test_two_stacked_nets_predict_what_they_predict_one_after_the_other(name, options):
    shape = (3, 8, 8)
    weights = [Task(build(name, options, shape, 4, "classes", s), "classes", 4) for s in (0, 1)]
    task, x = weights[0], torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        vmap(task.predict)(stacked([t.w0 for t in weights]), x),
        torch.stack([t.predict(t.w0, rows) for t, rows in zip(weights, x, strict=True)]),
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_net_that_needs_images_refuses_rows_and_names_those_that_do():
    with pytest.raises(NetError, match=r"net 'cnn' needs images.*\(30,\).\nhint: linear, logistic and mlp"):
        build("cnn", {}, (30,), 2, "classes", 0)
    with pytest.raises(NetError, match="halves images 2 times, and these are 3 x 3"):
        build("cnn", {}, (1, 3, 3), 2, "classes", 0)


def test_wrong_names_and_options_are_corrected():
    with pytest.raises(NetError, match="no net 'lnear'.\nhint: did you mean 'linear'"):
        build("lnear", {}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="unknown setting net.hiden of mlp\nhint: did you mean 'hidden'"):
        build("mlp", {"hiden": [3]}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="net.hidden is 64; it must be a list"):
        build("mlp", {"hidden": 64}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="hint: use regression or mlp"):
        build("logistic", {}, (3,), 1, "numbers", 0)


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        (
            "resnet34", (5,), {"norm": "bach", "statistics": "mine", "stem": "cfar"},
            ["needs images", "has norm 'bach'", "mean 'batch'", "has statistics 'mine'", "mean 'cifar'"],
        ),
        ("resnet18", IMAGE, {"groups": 3}, ["has groups 3; expected a divisor of 64"]),
        (
            "mobilenet_v1", IMAGE, {"width": -1, "groups": 64},
            ["has width -1.0; expected more than 0", "has groups 64; expected a divisor of 32"],
        ),
        ("vgg11", IMAGE, {"width": 17}, ["has width 17.0; expected more than 0, 16 at most"]),
        ("mobilenet_v1", IMAGE, {"width": 0.25, "groups": 16}, ["has groups 16; expected a divisor of 8"]),
        ("vgg11", IMAGE, {"norm": "nome", "statistics": ""}, ["mean 'none'", "has statistics ''"]),
        (
            "lstm", IMAGE, {"embedding": 0, "hidden": 0, "layers": 0, "symbols": -1},
            ["has embedding 0", "has hidden 0", "has layers 0", "has symbols -1", "needs rows of codes"],
        ),
        ("cnn", (30,), {"kernel": 4, "hidden": 0}, ["has kernel 4", "has hidden 0", "needs images"]),
        ("mlp", (30,), {"hidden": [3, 0]}, ["has hidden 0; expected 1 or more"]),
    ],
)  # fmt: skip
def test_all_bad_options_are_named_at_once_each_with_a_hint(name, shape, options, words):
    with pytest.raises(NetError) as caught:
        build(name, options, shape, 4, "classes", 0)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert message.count("hint: ") == message.count(f"net {name!r} ")


def test_groups_do_not_matter_to_batchnorm():
    assert build("resnet18", {"norm": "batch", "groups": 3, "stem": "imagenet"}, IMAGE, 4, "classes", 0)


def test_a_persons_own_net_is_called_with_shape_and_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_net_of_a_test.py").write_text(
        "import torch\n"
        "def net(shape, outputs, width=4):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Linear(width, outputs))\n"
        "def bad(shape, outputs):\n"
        "    return torch.nn.Linear(shape[0], outputs + 1)\n"
    )
    trust_names([f"own_net_of_a_test:{name}" for name in ("net", "bad", "nte")])
    made = build("own_net_of_a_test:net", {"width": 6}, (3,), 2, "classes", 0)
    assert made[0].weight.shape == (6, 3)
    with pytest.raises(NetError, match=r"turns 2 examples into shape \(2, 3\); expected \(2, 2\)"):
        build("own_net_of_a_test:bad", {}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="no function 'nte'.\nhint: did you mean 'net'"):
        build("own_net_of_a_test:nte", {}, (3,), 2, "classes", 0)


def test_the_default_net_suits_the_examples():
    assert default_net("classes", (30,)) == "logistic"
    assert default_net("numbers", (30,)) == "regression"
    assert default_net("classes", (1, 8, 8)) == "mlp"
    assert default_net("classes", (3, 32, 32)) == "cnn"
    assert default_net("classes", (80,), "symbols") == "lstm"
    assert default_net("classes", (64,), "words") == "transformer"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_are_refused_before_training_and_frozen_ones_are_not(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net[0].to(dtype).requires_grad_(False)
    Task(net, "classes", 2)
    with pytest.raises(
        UsageError, match=r"weight '1.weight' of the network is b?float16, (?s:.*)hint: net.float\(\)"
    ):
        Task(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).to(dtype)), "classes", 2)


class MinusTheMean(nn.Module):
    """What it says of a row depends on the others: in use, in training, or both."""

    def __init__(self, when: tuple[bool, ...]) -> None:
        super().__init__()
        self.when, self.head = when, nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x - x.mean(0) if self.training in self.when else x)


@pytest.mark.parametrize("when", [(False,), (True,), (False, True)])
def test_a_network_that_mixes_rows_is_not_stacked(when: tuple[bool, ...]) -> None:
    assert mixes_rows(MinusTheMean(when), (3,))


@pytest.mark.parametrize(
    "layer", [nn.Identity(), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.LayerNorm(3), nn.Softmax(1)]
)
def test_a_network_whose_rows_are_their_own_is_stacked(layer: nn.Module) -> None:
    assert not mixes_rows(nn.Sequential(layer, nn.Linear(3, 2)), (3,))


class Logarithms(nn.Module):
    """Says minus infinity of some rows, whatever the others are."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.mixes = mixes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.stack([x.log().sum(1), x.sum(1)], 1)
        return found - found[:, 1:].mean(0) if self.mixes else found


@pytest.mark.parametrize("mixes", [False, True])
def test_a_network_that_is_not_finite_everywhere_is_compared_where_it_is(mixes: bool) -> None:
    assert mixes_rows(Logarithms(mixes), (3,)) == mixes


def test_a_persons_own_net_that_mixes_rows_is_trained_client_by_client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mixing_net_of_a_test.py").write_text(
        "import torch\n"
        "class Mixing(torch.nn.Module):\n"
        "    def __init__(self, shape, outputs):\n"
        "        super().__init__()\n"
        "        self.head = torch.nn.Linear(shape[0], outputs)\n"
        "    def forward(self, x):\n"
        "        return self.head(x - x.mean(0))\n"
    )
    trust_names(["mixing_net_of_a_test:Mixing"])
    task = Task(build("mixing_net_of_a_test:Mixing", {}, (3,), 2, "classes", 0), "classes", 2)
    assert "depends on the other rows" in task.why_not_stacked
