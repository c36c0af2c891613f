"""Networks of timm from a local folder: the folder's own features, what is trained and sent, what is refused.

timm is not among the packages of the tests. It brings torchvision, which must be built for the very torch that is
installed, and where it is not, transformers cannot be imported either. So these tests are skipped where there is no
timm, and a long test gives it to them in a folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import motet
from motet.client import Task
from motet.nets import NetError, build


@pytest.fixture(scope="module")
def timm() -> Any:
    """timm imports torchvision, whose package is built for CUDA: beside a torch for CPUs its compiled operators are
    missing, and its import asks for two of them. No network here uses one."""
    if torch.version.cuda is None and "torchvision" not in sys.modules:
        OPERATORS.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            OPERATORS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return pytest.importorskip("timm")


OPERATORS: list[Any] = []  # torch forgets operators whose library is gone
SMALL = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


def write(timm: Any, folder: Path, name: str, **options: Any) -> Any:
    """A folder of timm's form, with weights at random."""
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, num_classes=3, **options).eval()
    config = {
        "architecture": name,
        "num_classes": 3,
        "model_args": options,
        "pretrained_cfg": {"classifier": model.pretrained_cfg["classifier"]},
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "model.safetensors")
    return model


@pytest.fixture(scope="module")
def vit(timm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vit")
    write(timm, folder, "vit_tiny_patch16_224", **SMALL)
    return folder


@pytest.mark.parametrize(
    ("name", "options", "side"), [("vit_tiny_patch16_224", SMALL, 8), ("resnet10t", {}, 32)]
)
def test_the_body_gives_the_features_of_the_network_in_the_folder(
    timm: Any, tmp_path: Path, name: str, options: dict[str, Any], side: int
) -> None:
    model = write(timm, tmp_path, name, **options)
    net = build(f"timm:{tmp_path}", {}, (3, side, side), 5, "classes", 0).eval()
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    torch.testing.assert_close(net(x), net.head(features))
    assert net(x[:0]).shape == (0, 5)


def test_only_the_head_or_adapters_and_the_head_of_a_timm_network_travel(vit: Path) -> None:
    def sent(**options: Any) -> int:
        net = build(f"timm:{vit}", options, (3, 8, 8), 2, "classes", 0)
        return sum(a.numel() for a in Task(net, "classes", 2).w0.values())

    assert sent() == 16 * 2 + 2
    # one layer of queries, keys and values: A is rank x 16, B is 48 x rank
    assert sent(train="lora", rank=2, adapt=["qkv"]) == 2 * (16 + 48) + 34
    assert sent(train="all") > 1000


def test_a_run_with_a_timm_network(vit: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    x = (rng.normal(size=(40, 3, 8, 8)) + y[:, None, None, None]).astype("float32")
    data = {f"c{k}": (x[k::2], y[k::2]) for k in range(2)}
    run = motet.run(data=data, net=f"timm:{vit}", method="fedavg", rounds=2, out=tmp_path)
    assert any("frozen" in note for note in run.facts["notes"])


def test_folders_that_hold_no_network_of_timm_are_refused(timm: Any, vit: Path, tmp_path: Path) -> None:
    def refused(match: str, **config: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(NetError, match=match):
            build(f"timm:{tmp_path}", {}, (3, 8, 8), 2, "classes", 0)

    refused("(?s)no .safetensors file.*hint: .*net=timm:FOLDER")
    (tmp_path / "model.safetensors").write_bytes((vit / "model.safetensors").read_bytes())
    refused("(?s)not one of timm.*hint: .*net=hf:FOLDER", model_type="bert")
    refused("(?s)'no_such_net'.*cannot be made.*hint: ", architecture="no_such_net")
    refused("(?s)not those of the network.*hint: ", architecture="vit_tiny_patch16_224", model_args=SMALL)
    with pytest.raises(NetError, match="(?s)does not take examples of shape.*hint: "):
        build(f"timm:{vit}", {}, (8,), 2, "classes", 0)
    with pytest.raises(NetError, match=r"(?s)net.adapt is needed.*hint: net.adapt=fc1,fc2"):
        build(f"timm:{vit}", {"train": "lora"}, (3, 8, 8), 2, "classes", 0)


# ---- with timm beside the packages of the tests ----

PACKAGES = ("timm==1.0.31", "torchvision==0.28.0")  # of torch 2.13
FAILS = "from motet.nets import build\nbuild('timm:{}', {{}}, (3, 8, 8), 2, 'classes', 0)\n"


@pytest.mark.long
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="torchvision 0.28 is for torch 2.13")
def test_all_of_this_with_timm_in_a_folder_of_its_own(tmp_path: Path) -> None:
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "here"),
    ]
    subprocess.run([*install, *PACKAGES], check=True)
    paths = [str(tmp_path / "here"), *filter(None, sys.path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    order = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", __file__]
    ran = subprocess.run(order, env=env, capture_output=True, text=True)
    assert ran.returncode == 0 and "passed" in ran.stdout and "skipped" not in ran.stdout, ran.stdout
    if torch.version.cuda is None:  # a torchvision for another torch is said, with what would help
        (tmp_path / "config.json").write_text('{"architecture": "resnet10t"}')
        (tmp_path / "model.safetensors").touch()
        ran = subprocess.run(
            [sys.executable, "-c", FAILS.format(tmp_path)], env=env, capture_output=True, text=True
        )
        assert (
            "NetError: timm cannot be imported" in ran.stderr
            and "hint: timm needs a torchvision" in ran.stderr
        )
