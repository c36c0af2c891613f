"""Data of hospitals, `heart` and `tcga_brca`: the rows, columns and parts that were published, and honest gaps."""

import csv

import numpy as np
import pytest
import torch

from motet.data.federated import DataError
from motet.data.files.local_files import content, find
from motet.data.load import DataSettings
from motet.data.partition import partition
from motet.data.sets import heart, tcga_brca


def made(rows: int = 10) -> dict[str, np.ndarray]:
    """Four hospitals with all cells, drawn at random within UCI's codes."""
    rng, n = np.random.default_rng(0), 4 * rows
    codes = [
        rng.choice(c, n) for c in ((0, 1), (1, 2, 3, 4), (0, 1), (0, 1, 2), (0, 1), (1, 2, 3), (3, 6, 7))
    ]
    sex, cp, fbs, restecg, exang, slope, thal = codes
    numbers = rng.integers(80, 200, (5, n))
    x = [numbers[0], sex, cp, numbers[1], numbers[2], fbs, restecg, numbers[3], exang, numbers[4], slope]
    x += [rng.integers(0, 4, n), thal]
    num = np.arange(n) % 5
    return {"x": np.array(x, np.float64).T, "num": num, "owner": np.repeat(np.arange(4), rows)}


def column(pool, name: str) -> np.ndarray:
    return pool.x[:, [c.name for c in pool.columns].index(name)]


def test_codes_become_flags_and_everything_above_zero_is_disease():
    found = made()
    pool = heart.pool(found)
    assert pool.problems() == [] and len(pool.columns) == 22 and pool.classes == ("healthy", "disease")
    assert (pool.y == (found["num"] > 0)).all()
    for group in ("cp", "restecg", "slope", "thal"):
        assert (pool.x[:, [c.group == group for c in pool.columns]].sum(1) == 1).all()
    assert (column(pool, "thal=6") == (found["x"][:, 12] == 6)).all()
    assert pool.held.all() and pool.notes == []


def test_a_pressure_of_zero_is_missing_and_a_depression_of_zero_is_not():
    found = made()
    found["x"][3, [3, 4, 9]] = 0  # trestbps, chol, oldpeak
    pool = heart.pool(found)
    gaps = np.argwhere(np.isnan(pool.x))
    assert {(int(r), pool.columns[c].name) for r, c in gaps} == {(3, "trestbps"), (3, "chol")}


def test_a_column_that_a_hospital_hardly_has_is_absent_there_and_a_gap_elsewhere():
    found = made()
    found["x"][0:9, 11] = np.nan  # ca: one row of ten is left at the first hospital
    found["x"][10:15, 12] = np.nan  # thal: half is left at the second
    pool = heart.pool(found)
    names = [c.name for c in pool.columns]
    absent = {(heart.HOSPITALS[i], names[j]) for i, j in np.argwhere(~pool.held)}
    assert absent == {("cleveland", "ca")} and np.isnan(column(pool, "ca")[:10]).all()
    assert np.isnan(column(pool, "thal=3")[10:20]).sum() == 5
    assert pool.notes == ["columns that a hospital does not hold: cleveland has no ca"]
    assert heart.pool(found, held=0.1).held.all()
    with pytest.raises(DataError, match="held is 2; expected a share"):
        heart.pool(found, held=2)


def test_an_absent_column_is_marked_at_its_hospital_alone_and_teaches_nobody():
    found = made()
    found["x"][0:10, 11] = np.nan
    federation = partition("heart", heart.pool(found), DataSettings(), {})
    at = [c.name for c in federation.columns].index("ca")
    here = {client: data.columns[at].here for client, data in federation.clients_data.items()}
    assert here == {"cleveland": False, "hungarian": True, "switzerland": True, "va": True}
    assert (federation.clients_data["cleveland"].train.x[:, at] == 0).all()
    assert federation.missing == {}  # a column that is not held has no gaps


def test_clients_that_are_not_the_hospitals_hold_all_columns():
    found = made()
    found["x"][0:10, 11] = np.nan
    common = DataSettings(split="iid", unseen=0)
    federation = partition("heart", heart.pool(found), common, {"clients": 3})
    assert all(c.here for data in federation.clients_data.values() for c in data.columns)


def test_real_hospitals_lack_the_columns_that_are_known_to_be_missing(decoded):
    pool = heart.pool(decoded(heart))
    assert pool.x.shape == (920, 22) and pool.y.sum() == 509
    absent = {
        (heart.HOSPITALS[i], pool.columns[j].group or pool.columns[j].name)
        for i, j in np.argwhere(~pool.held)
    }
    others = ("hungarian", "switzerland", "va")
    assert absent == {
        *((h, "ca") for h in others),
        ("hungarian", "thal"),
        ("va", "thal"),
        ("switzerland", "chol"),
    }


FLAMBY = {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}


def flamby(decoded, **common):
    return partition("heart", heart.flamby_pool(decoded(heart)), DataSettings(**common), {})


def test_as_flamby_has_the_published_sizes_for_every_seed(decoded):
    for seed in (0, 1, 42):
        found = flamby(decoded, seed=seed, val=0).clients_data
        assert {h: (len(d.train), len(d.test)) for h, d in found.items()} == FLAMBY


def test_as_flamby_has_the_published_features_in_the_published_order(decoded):
    names = [c.name for c in heart.flamby_pool(decoded(heart)).columns]
    numbers = ["age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"]
    assert names == [*numbers, "cp=2", "cp=3", "cp=4", "restecg=1", "restecg=2"]


def test_as_flamby_standardises_every_column_by_a_hospitals_training_rows(decoded):
    for data in flamby(decoded, val=0).clients_data.values():
        x = data.train.x.double()
        varies = x.std(0) > 0
        assert x.mean(0).abs().max() < 1e-5
        assert torch.allclose(x.std(0)[varies], torch.ones(int(varies.sum()), dtype=torch.float64), atol=1e-5)


def test_as_flamby_keeps_rows_in_the_order_of_the_files(decoded, folder):
    lines = content(find(folder(heart), "processed.va.data")).decode().split()
    cells = [line.split(",") for line in lines]
    ages = [float(c[0]) for c in cells if "?" not in c[:10]]
    pool = heart.flamby_pool(decoded(heart))
    assert column(pool, "age")[pool.owner == 3].tolist() == ages and len(ages) == 130


def test_as_flamby_with_validation_rows_takes_them_from_the_training_rows(decoded):
    whole, some = (flamby(decoded, val=v) for v in (0, 0.2))
    for hospital, (train, test) in FLAMBY.items():
        data = some.clients_data[hospital]
        assert len(data.train) + len(data.val) == train and len(data.test) == test
        assert (data.test.y == whole.clients_data[hospital].test.y).all()
        assert data.train.x.mean(0).abs().max() < 1e-5  # scaled by the rows that are left


def test_as_flamby_the_server_tests_on_all_test_rows_scaled_by_all_training_rows(decoded):
    pool, data = heart.flamby_pool(decoded(heart)), flamby(decoded, val=0)
    train, test = (pool.x[pool.part == part] for part in (0, 2))
    expected = (test - train.mean(0)) / train.std(0, ddof=1)
    assert np.allclose(data.server_test.x.numpy(), expected, atol=1e-5) and len(data.server_test) == 254


def test_a_wrong_hospital_file_is_refused(tmp_path):
    (tmp_path / "processed.cleveland.data").write_text("63,1,1\n")
    with pytest.raises(DataError, match=r"processed.cleveland.data is not the file it should be: its sha256"):
        heart.decode(tmp_path)


REGIONS = {"Northeast": (248, 63), "South": (156, 40), "West": (164, 42), "Midwest": (129, 33)}
REGIONS |= {"Europe": (129, 33), "Canada": (40, 11)}


def test_tcga_brca_has_the_published_sizes_and_features(decoded):
    pool = tcga_brca.pool(decoded(tcga_brca))
    assert pool.x.shape == (1088, 39) and [c.name for c in pool.columns if c.kind == "number"] == [
        "age_at_index"
    ]
    sizes = {
        name: tuple(int(((pool.owner == i) & (pool.part == part)).sum()) for part in (0, 2))
        for i, name in enumerate(pool.names)
    }
    assert sizes == REGIONS and (np.isin(pool.x[:, 1:], (0, 1))).all()


def test_tcga_brca_has_times_of_the_dead_above_zero_and_of_the_others_below(decoded):
    found = decoded(tcga_brca)
    y = tcga_brca.pool(found).y
    assert (y != 0).all() and ((y > 0) == (found["event"] == 1)).all() and (y > 0).sum() == 151
    watched = found["time"] > 0
    assert (abs(y)[watched] == found["time"][watched]).all() and (abs(y)[~watched] == 0.5).all()
    assert (~watched).sum() == 12


def test_tcga_brca_agrees_with_the_regions_of_its_hospitals(folder):
    path = folder(tcga_brca)
    if not (path / "centers.csv").is_file():
        pytest.skip("FLamby's list of hospitals is not there")
    rows = csv.DictReader(content(path / "centers.csv").decode().splitlines())
    region = {row["TSS Code"]: row["Region"] for row in rows}
    split = csv.DictReader(content(path / "train_test_split.csv").decode().splitlines())
    told = {row["pid"]: tcga_brca.REGIONS[int(row["fold2"][-1])] for row in split}
    assert len(told) == 1088 and all(region[pid[5:7]] == name for pid, name in told.items())
