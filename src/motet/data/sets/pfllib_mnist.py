"""PFLlib's federation of MNIST (Zhang et al. 2025): 70,000 digits, 20 clients by Dirichlet(0.1), test rows given.

The one federation that the library ships: MNIST's training and test images together, divided by class with alpha 0.1,
three quarters of a client's rows for training and one quarter for test. Rows are in the library's order. Pixels are
normalised as there, to mean 0.5 and deviation 0.5. Validation rows (data.val) are drawn from the training rows; the
library has none: data.val = 0.

Read from the library's own files, or from an index into MNIST (row, client, test). The library's files are pickles:
they are not unpickled, only the bytes of their two arrays are taken out of them.
PFLlib is under the Apache licence 2.0; MNIST is under CC BY-SA 3.0.
Knows the files. Does not know how images reach a network.
"""

from __future__ import annotations

import hashlib
import pickletools
import zipfile
from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import PARTS, Pixels, Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.image_formats import table_of
from motet.data.files.local_files import compare, content, find, reading
from motet.data.splits.assignment import client_names

_COMMIT = "d832e76f6a23b833038949ec1e4fdefe63a4d350"
_PFLLIB = f"https://raw.githubusercontent.com/TsingZ0/PFLlib/{_COMMIT}/dataset/MNIST"
_FILES = {  # size and sha256 of each client's file
    "train": (
        (509_532, "99293ac3778543a3233a2afca5c6d9f807d9e5b59785d9ae38b165484751847b"),
        (105_456, "5738e4b2c04914d4dd279b901408cc91e6de76646b620f73c7e9768ba97baf70"),
        (346_374, "e5ee849a61cb64fbd9d1e53a597125f8c00aa4e168884464d148023e399295d8"),
        (463_858, "44451305403cfbd576e5088e06828442c16d18284c603469a1607341ead3250b"),
        (395_089, "8174277ca6b3049324839838d8cea263743ed215ee3d95bf7c47ed3b2d729f88"),
        (1_250_731, "af2aa8e54402fe0ce1349e4de466c2d044dfda94335ae339ad9fa40f9d55b451"),
        (194_636, "ed8932ba84e471ad2d321ba0482f4d26b68109a7015615c37294d10dab33a6e2"),
        (268_621, "06dfde47fbe10556e1a0a8ab4cb733ada624b9d58904b737968f7f0aafd4df45"),
        (443_291, "411605047609eb1cf656b7d2fbacacce73841f1b01b131c61847cb857e0b9a76"),
        (696_821, "1c0e006e9f063f62c50d1bfc3d63125386ca0cc9ba27d9e1643acb27e7de0a84"),
        (686_217, "ede93821750c47ffd70fa7416cbfb1cdbdb3794ac02038d3b493f47186476360"),
        (796_540, "f66973d1982d0abf6491da21343312c5cc82f36aec290900b7859243b9143f99"),
        (755_807, "15f88fffe5affa63413b6c5f7bdd9b2395e3c71b2b3653807089eaa125c3883d"),
        (394_075, "023320444a2ccb2707af77baae804f28a246cfac4606bd8e8d7776f4837423d8"),
        (1_097_676, "6187adffc88548a3b29f2ff390d296d40d1247a20edbbcb2051d23cd98b29193"),
        (1_194_830, "fc342e63ffc5ca3f4fd331002451869bdee42080394fe75d24d8d9f12f8e851d"),
        (852_167, "f849992442bada09b197cbdce0376e28aa405737e64709c0f3a146f2a9c7b703"),
        (1_245_897, "93c190a2dd1911c1c46cdd038a1ec0857e3acefb92afaa3d0faceec483d88821"),
        (1_142_168, "4f636e4849f57c8752b74d6f637e43d1829d23aa396df5e25fdc062d748c564b"),
        (1_226_673, "f3e5d9d4ffedac2effb2d0cb457745530116940106b5652e7d0e7c95e3290a61"),
    ),
    "test": (
        (168_303, "02469e19c6baf1356991aa435a7cf7eb095e3fec52ff9763f2ad22eb71ee99ac"),
        (35_770, "04e77d9b59c42c1e4d33c0260b10ab4778dcf364e7fbf45cfcf7e63a7e7cb5c1"),
        (114_818, "ac79c3a36a52b26eced0f2fff7894b7adf56a16de9d160fbc477f9b6be115160"),
        (154_361, "923325ff228a700cc70d9495c860a527069c074535c165c7eba1a359b5dfa535"),
        (132_528, "cc4e7a3fedda97d3baf8cdd1600e658d72413fecaf5a5f15cd906532ca887eaa"),
        (415_768, "e1e7c27b352c1a2548be04de73e3dc1008b6c950a547abade4451dc242b6330a"),
        (64_925, "9f34530f20481c76625f91b8dbf15f33b26a6286b509557e6eba7d8031650b19"),
        (90_957, "2d24799a10627b0a6b69bc9f6a2e0c9d7c22bcab1224151d8c4b35fffdfa30d9"),
        (148_815, "9d5fea9308728733c028e39f7a24b97fdcd1227f0556afbcdfd2bc5d50dfb937"),
        (229_237, "1b095dd329b0b507a72a2eadc0bdb1084a1e8f065d9dbe415a7f675107fc4764"),
        (227_920, "53d2042905c69016228a8457a65d710db9fe223433defc28423404ad47bad629"),
        (264_567, "413b82e26fd5fcf2f7c7c62204603f1a412e3ef23d5500693f5341ee06385b1c"),
        (249_532, "d4f17e1221e7479e1114e3cf0bc59ae93adfb0dc605befb120ff808736a2b1a5"),
        (134_735, "94dd2e8570835839bbbd40f8397d818616c0ddb57321163bce2c4a74d5a85803"),
        (369_239, "ef2a9e6fce958c3ef5b7b8da24c06873364736da74ab96c1c8343376828083de"),
        (400_031, "813b4fbd7beaeb5de67ef3fb54d4e5d2a33508883c284713f7291f39de631a18"),
        (284_900, "259abd71083f687ea5a4bf4e8145bb3962b51d32882cf8ad5d58c25d87af3714"),
        (417_217, "a2f7160a5adfc115747e7d8e132393fbdf5e7943c41c8ef880c1c38011cbd8ed"),
        (379_319, "e0a769515190cd25042c65d6d0829e703d6f7d5c884d272b02346f462b4c3e8a"),
        (413_727, "65894261f75411c58c220500fbc120dcd591dfb7b7a26036d4c110c733d745f0"),
    ),
}
SOURCES = tuple(
    Remote(f"{part}_{i}.npz", f"{_PFLLIB}/{part}/{i}.npz", size, sha256)
    for part, files in _FILES.items()
    for i, (size, sha256) in enumerate(files)
)
FOLDERS = ("pfllib_mnist",)
INDEX = "dirichlet01_20clients.npz"
ORIGIN = (
    "the folder dataset/MNIST of PFLlib (github.com/TsingZ0/PFLlib), with its folders train and test; "
    f"or an index into MNIST, {INDEX}, beside the files of mnist"
)
_CLIENTS, _SIDE = 20, 28
# sha256 of all images, client by client, training rows first
_IMAGES = "0294f656ba0d7b11b1757152babd7e295c7ff472772fd2d973bde362c58ff4ea"


def load() -> Pool:
    """Grey images; the clients are PFLlib's, with its test rows."""
    return pool(arrays("pfllib_mnist"), tuple(map(str, range(10))), Pixels((0.5,), (0.5,)))


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (70000, 28, 28, 1), y, owner and part, client by client, training rows first."""
    indexed = (folder / INDEX).is_file()
    x, y, owner, part = from_index(folder / INDEX) if indexed else from_library(folder)
    order = np.argsort(owner * len(PARTS) + part, kind="stable")
    found = {"x": x[order], "y": y[order], "owner": owner[order], "part": part[order]}
    compare(folder, "sha256 of all images", hashlib.sha256(found["x"].data).hexdigest(), _IMAGES)
    return found | {"names": np.array(client_names(_CLIENTS))}


_Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # images, labels, client and part


def from_index(path: Path) -> _Rows:
    """The rows of MNIST that an index names."""
    index = table_of(path, row="iu", client="iu", test="iu")
    mnist = arrays("mnist")
    frames.expect(path, "rows", len(index["row"]), len(mnist["y"]))
    part = np.where(index["test"], PARTS.index("test"), PARTS.index("train"))
    return mnist["x"][index["row"]], mnist["y"][index["row"]], index["client"].astype(np.int64), part


def from_library(folder: Path) -> _Rows:
    """The rows of PFLlib's own files."""
    found = []
    for part, files in _FILES.items():
        for client, (_, sha256) in enumerate(files):
            x, y = client_rows(find(folder, f"{part}_{client}.npz", f"{part}/{client}.npz"), sha256)
            found.append((x, y, np.full(len(y), client), np.full(len(y), PARTS.index(part))))
    x, y, owner, parts = (np.concatenate(column) for column in zip(*found, strict=True))
    return x, y, owner, parts


def client_rows(path: Path, sha256: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Images as bytes (n, 28, 28, 1), and labels, of a file that holds {"x": float32, "y": int64} as a pickle.

    The pickle is only read as a list of instructions: its two long strings of bytes are the arrays.
    """
    content(path, sha256=sha256)
    with reading(path), zipfile.ZipFile(path) as archive:
        raw = archive.read("data.npy")
        header = 10 + int.from_bytes(raw[8:10], "little")
        values = [a for _, a, _ in pickletools.genops(raw[header:]) if isinstance(a, bytes) and len(a) > 8]
        x, y = np.frombuffer(values[0], "<f4"), np.frombuffer(values[1], "<i8")
        pixels = np.rint((x.reshape(-1, _SIDE, _SIDE, 1) * 0.5 + 0.5) * 255).astype(np.uint8)
    frames.expect(path, "images and labels", len(pixels), len(y))
    return pixels, y.astype(np.uint8)
