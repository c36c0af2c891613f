"""Networks by name: shapes, seeds, and errors that say what would do."""

import sys

import pytest
import torch

from motet.local import Task
from motet.tasks.nets import NetError, build, default_net, names


def test_there_are_five_nets():
    assert names() == ["cnn", "linear", "logistic", "mlp", "resnet18"]


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("linear", (7,), {}),
        ("logistic", (1, 8, 8), {}),
        ("mlp", (1, 8, 8), {"hidden": [16, 8]}),
        ("mlp", (5,), {"hidden": []}),
        ("cnn", (1, 8, 8), {"hidden": 32}),
        ("cnn", (1, 28, 28), {"channels": [4, 8], "hidden": 16, "kernel": 3}),
        ("cnn", (3, 32, 32), {"hidden": 16}),
        ("resnet18", (3, 32, 32), {}),
        ("resnet18", (1, 28, 28), {"stem": "imagenet", "groups": 8}),
    ],
)
def test_every_net_is_a_task_whose_head_comes_last(name, shape, options):
    task = Task(build(name, options, shape, 4, "classes", 0), "classes", 4)
    assert task.predict(task.w0, torch.randn(3, *shape)).shape == (3, 4)
    assert tuple(task.w0)[-2:] == task.head == ("head.weight", "head.bias")


def test_weights_depend_on_the_seed_and_torchs_generator_is_untouched():
    before = torch.get_rng_state()
    a, b, c = (build("mlp", {}, (5,), 3, "classes", s).fc1.weight for s in (1, 1, 2))
    assert (a == b).all() and (a != c).any()
    assert (torch.get_rng_state() == before).all()


def test_logistic_starts_from_zero_and_linear_does_not():
    assert all((p == 0).all() for p in build("logistic", {}, (5,), 3, "classes", 0).parameters())
    assert all((p != 0).any() for p in build("linear", {}, (5,), 1, "numbers", 0).parameters())


def test_the_cnn_is_mcmahans():
    net = build("cnn", None, (1, 28, 28), 10, "classes", 0)
    assert sum(p.numel() for p in net.parameters()) == 1_663_370  # the number in their paper


def test_resnet18_has_torchvisions_number_of_parameters():
    net = build("resnet18", {"stem": "imagenet"}, (3, 64, 64), 1000, "classes", 0)
    assert sum(p.numel() for p in net.parameters()) == 11_689_512


def test_a_net_that_needs_images_refuses_rows_and_names_those_that_do():
    with pytest.raises(NetError, match=r"net 'cnn' needs images.*\(30,\).\nhint: linear, logistic and mlp"):
        build("cnn", {}, (30,), 2, "classes", 0)
    with pytest.raises(NetError, match="halves images 2 times, and these are 3 x 3"):
        build("cnn", {}, (1, 3, 3), 2, "classes", 0)


def test_wrong_names_and_options_are_corrected():
    with pytest.raises(NetError, match="no net 'lnear'.\nhint: did you mean 'linear'"):
        build("lnear", {}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="has no option 'hiden'.\nhint: did you mean 'hidden'"):
        build("mlp", {"hiden": [3]}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="option hidden of net 'mlp' is 64"):
        build("mlp", {"hidden": 64}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="hint: use linear or mlp"):
        build("logistic", {}, (3,), 1, "numbers", 0)


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
    made = build("own_net_of_a_test:net", {"width": 6}, (3,), 2, "classes", 0)
    assert made[0].weight.shape == (6, 3)
    with pytest.raises(NetError, match=r"turns 2 examples into shape \(2, 3\); expected \(2, 2\)"):
        build("own_net_of_a_test:bad", {}, (3,), 2, "classes", 0)
    with pytest.raises(NetError, match="no function 'nte'.\nhint: did you mean 'net'"):
        build("own_net_of_a_test:nte", {}, (3,), 2, "classes", 0)


def test_the_default_net_suits_the_examples():
    assert default_net("classes", (30,)) == "logistic"
    assert default_net("numbers", (30,)) == "linear"
    assert default_net("classes", (1, 8, 8)) == "mlp"
    assert default_net("classes", (3, 32, 32)) == "cnn"
