"""Federations that others published, `school` and `pfllib_mnist`: their clients, rows and parts."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.load import DataSettings, load
from motet.data.partition import partition
from motet.data.sets import pfllib_mnist, school


def test_school_has_the_published_schools_pupils_and_columns(decoded):
    pool = school.pool(decoded(school))
    assert pool.problems() == [] and pool.x.shape == (15_362, 28) and len(pool.names) == 139
    sizes = np.bincount(pool.owner)
    assert (sizes.min(), sizes.max(), sizes[0]) == (22, 251, 200)
    numbers = [c.name for c in pool.columns if c.kind == "number"]
    assert numbers == ["free_meals", "band_1", "constant"]
    for group in ("year", "gender", "ethnic_group", "school_gender", "denomination"):
        assert (pool.x[:, [c.group == group for c in pool.columns]].sum(1) == 1).all()


def test_scores_run_from_zero_to_one_or_from_1_to_70(decoded):
    found = decoded(school)
    share, score = school.pool(found).y, school.pool(found, raw_score=True).y
    assert (share.min(), share.max(), score.min(), score.max()) == (0, 1, 1, 70)
    assert np.allclose(share * 69 + 1, score)


def test_nearly_all_schools_that_are_not_mixed_have_pupils_of_one_gender(decoded):
    pool = school.pool(decoded(school))
    names = [c.name for c in pool.columns]
    gender, mixed = pool.x[:, names.index("gender=1")], pool.x[:, names.index("school_gender=1")]
    one = [len(set(gender[pool.owner == i])) == 1 for i in range(139)]
    agree = [bool(mixed[pool.owner == i].all()) != one[i] for i in range(139)]
    assert sum(agree) == 137  # which shows that these columns are called rightly


def test_the_best_band_of_pupils_has_the_code_that_ilea_gives_it(decoded):
    pool = school.pool(decoded(school), raw_score=True)
    names = [c.name for c in pool.columns]
    means = [pool.y[pool.x[:, names.index(f"band={code}")] == 1].mean() for code in (1, 2, 3)]
    assert np.argsort(means).tolist() == [0, 2, 1]  # ILEA: 1 is the lowest band, 2 the highest


def test_pfllib_mnist_has_the_published_clients(decoded):
    found = decoded(pfllib_mnist)
    assert found["x"].shape == (70_000, 28, 28, 1) and found["x"].dtype == np.uint8
    sizes = np.bincount(found["owner"]).tolist()
    assert sizes[:5] == [2630, 499, 1630, 2541, 1917] and sizes[-1] == 6103
    tests = np.bincount(found["owner"][found["part"] == 2]).tolist()
    assert tests[:4] == [658, 125, 408, 636] and sum(tests) == 17_508
    first = np.bincount(found["y"][found["owner"] == 0], minlength=10).tolist()
    assert first == [140, 890, 0, 0, 1, 319, 0, 29, 1067, 184]


def test_pfllib_mnist_keeps_its_test_rows_and_normalises_to_minus_one_and_one(folder):
    folder(pfllib_mnist)
    data = load("pfllib_mnist", {"val": 0, "seed": 5})
    client = data.clients_data["client-01"]
    assert (len(client.train), len(client.val), len(client.test)) == (374, 0, 125)
    assert data.pixels.mean == data.pixels.std == (0.5,)


class Trap:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("trap-was-sprung"),)


def written(path: Path, thing: object) -> Path:
    np.savez_compressed(path, data=np.array(thing, dtype=object))
    return path


def test_a_file_of_pfllib_is_read_without_unpickling_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    x = ((pixels / np.float32(255)).astype(np.float32) - np.float32(0.5)) / np.float32(0.5)
    whole = {"x": x.reshape(3, 1, 28, 28), "y": np.array([7, 0, 2]), "more": Trap()}
    got, y = pfllib_mnist.client_rows(written(tmp_path / "0.npz", whole))
    assert (got == pixels).all() and y.tolist() == [7, 0, 2]
    assert not Path("trap-was-sprung").exists()


def test_a_file_of_pfllib_with_another_checksum_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    written(tmp_path / "train" / "0.npz", {"x": np.zeros((1, 1, 28, 28), np.float32), "y": np.zeros(1, int)})
    with pytest.raises(DataError, match=r"train.0\.npz is not the file it should be: its sha256"):
        pfllib_mnist.decode(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no more", None])
def test_a_damaged_file_of_pfllib_is_refused_by_name(content, tmp_path):
    if content is None:
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w") as archive:
            archive.writestr("data.npy", b"nothing of use")
        content = raw.getvalue()
    (tmp_path / "0.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"0\.npz is truncated or another file"):
        pfllib_mnist.client_rows(tmp_path / "0.npz")


def test_a_wrong_school_file_is_refused(tmp_path):
    (tmp_path / "school.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(DataError, match=r"school\.mat is not the file it should be: its sha256"):
        school.decode(tmp_path)


def test_schools_standardise_by_themselves_as_in_the_literature(decoded):
    common = DataSettings(scale="client", val=0, test=0.3)
    data = partition("school", school.pool(decoded(school)), common, {})
    train = data.clients_data["school-001"].train
    assert len(train) == 140 and abs(float(train.x[:, 3].mean())) < 1e-5
