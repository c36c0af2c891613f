"""Images are shifted and mirrored by arithmetic, the same for one client alone and for many stacked."""

import torch

from motet.client import Batch, ClientData, Task
from motet.client.augment import shift_and_flip
from motet.client.task import Pixels
from motet.core import Turn
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg


def test_a_shift_by_hand():
    x = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    stay, one_down_two_right, mirror = 4 | 4 << 20, 3 | 2 << 20, 4 | 4 << 20 | 1 << 40
    assert shift_and_flip(x, torch.tensor([stay])).tolist() == x.tolist()
    assert shift_and_flip(x, torch.tensor([mirror]))[0, 0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    # the picture comes from one row above and two columns to the left; black comes in
    assert shift_and_flip(x, torch.tensor([one_down_two_right]))[0, 0].tolist() == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 4],
    ]


def test_every_shift_occurs_about_as_often_and_half_are_mirrored():
    x = torch.zeros(20_000, 1, 11, 11, dtype=torch.uint8)
    x[:, 0, 5, 5] = 1
    x[:, 0, 5, 4] = 2  # to the left of the middle: tells mirrored ones apart
    key = torch.randint(0, 1 << 62, (20_000,), generator=torch.Generator().manual_seed(0))
    out = shift_and_flip(x, key)[:, 0]
    spot = (out == 1).flatten(1).int().argmax(1)
    counts = torch.bincount(spot, minlength=121).reshape(11, 11)[1:10, 1:10]
    assert (counts.float() / 20_000 - 1 / 81).abs().max() < 0.004
    left = (out.flatten(1) == 2).int().argmax(1) < spot
    assert abs(left.float().mean() - 0.5) < 0.02


def clients_data(augment: bool) -> dict[str, ClientData]:
    g = torch.Generator().manual_seed(1)

    def some(n: int) -> Batch:
        x = torch.randint(0, 256, (n, 3, 8, 8), generator=g, dtype=torch.uint8)
        return Batch.of(x, torch.randint(0, 3, (n,), generator=g))

    return {f"c{i}": ClientData(some(5 + 4 * i), some(3), some(3), augment=augment) for i in range(4)}


def trained(engine: type[Loop], augment: bool):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    task = Task(net, "classes", 3, pixels=Pixels((0.5,) * 3, (0.25,) * 3))
    method = FedAvg(task, epochs=2, batch=4, lr=0.05)
    here = engine(clients_data(augment))
    return play(here, method, task.w0, Turn(0, here.clients, here.clients, 7))


def test_stacked_clients_see_the_same_images_as_one_by_one():
    alone, together = trained(Loop, True), trained(Vmap, True)
    assert max(float((alone[k] - together[k]).abs().max()) for k in alone) < 1e-5


def test_augmenting_changes_what_is_learned():
    with_, without = trained(Loop, True), trained(Loop, False)
    assert float((with_["1.weight"] - without["1.weight"]).abs().max()) > 1e-3


def test_bytes_are_normalised_by_channel():
    x = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 2, 1, 1)
    got = Pixels((0.5, 0.25), (0.5, 0.25)).normalise(x)
    assert got.flatten().tolist() == [-1.0, 3.0]
