"""Tables of the papers: they have the papers' rows, columns and clients, and wrong files are refused."""

import gzip

import numpy as np
import pytest
import torch

from motet.data.federated import DataError
from motet.data.files.local_files import content, find
from motet.data.partition import DataSettings, partition
from motet.data.sets import boston, census, covertype, vehicle_loan


def sizes(pool):
    return dict(zip(pool.names, np.bincount(pool.owner).tolist(), strict=True))


def canonical(pool):
    """How many columns there are if the flags of one group count as one."""
    return len({c.group or c.name for c in pool.columns})


@pytest.mark.parametrize("module", [census, covertype, vehicle_loan, boston])
def test_real_tables_are_usable_and_hold_no_objects(module, decoded):
    found = decoded(module)
    pool = module.pool(found)
    assert pool.problems() == [] and pool.scaling == "federation"
    assert all(values.dtype.kind in "fiS" and values.flags.c_contiguous for values in found.values())
    flags = [i for i, c in enumerate(pool.columns) if c.kind == "flag"]
    assert flags and set(np.unique(pool.x[:, flags])) == {0.0, 1.0}


def test_census_has_the_papers_counts(decoded):
    pool = census.pool(decoded(census))
    assert pool.x.shape == (46_643, 65) and pool.x.dtype == np.float32
    assert pool.y.sum() == 11_280 and pool.y.dtype == np.int64
    assert sizes(pool) == {"US": 42_980, "Latin America": 2_011, "Asia": 910, "Europe": 742}
    assert canonical(pool) == 12 and sum(c.kind == "number" for c in pool.columns) == 5


def test_census_keeps_unknown_words_of_the_first_half_only(decoded, folder):
    pool = census.pool(decoded(census))
    names = [c.name for c in pool.columns]
    raw = content(find(folder(census), "adult.data")).decode().splitlines()
    region = {c for those in census._REGIONS.values() for c in those.split()}
    unknown = sum(row.split(", ")[1] == "?" and row.split(", ")[13] in region for row in raw if row)
    assert pool.x[:, names.index("workclass=?")].sum() == unknown > 1000
    for group in census._WORDS:  # nobody has two words or none
        assert (pool.x[:, [c.group == group for c in pool.columns]].sum(1) == 1).all()


def test_covertype_has_the_papers_counts(decoded):
    pool = covertype.pool(decoded(covertype))
    assert pool.x.shape == (492_115, 50) and pool.x.dtype == np.float32
    assert sizes(pool) == {"Rawah": 251_914, "Neota": 27_580, "Comanche": 212_621}
    assert np.bincount(pool.y).tolist() == [211_840, 280_275] and pool.classes[0] == "spruce/fir"
    assert canonical(pool) == 50 and sum(c.kind == "flag" for c in pool.columns) == 40
    assert (pool.x[:, 10:].sum(1) == 1).all()


def test_covertype_gives_a_fixed_choice_of_rows(decoded):
    found = decoded(covertype)
    some, again = covertype.pool(found, 50_000), covertype.pool(found, 50_000)
    assert some.x.shape == (50_000, 50) and (some.x == again.x).all() and (some.y == again.y).all()
    assert abs(some.y.mean() - found["y"].mean()) < 0.01 and "50000 of 492115" in some.notes[0]
    with pytest.raises(DataError, match="rows is -1; expected at most 492115"):
        covertype.pool(found, -1)


def test_vehicle_loan_has_the_papers_columns(decoded):
    pool = vehicle_loan.pool(decoded(vehicle_loan))
    assert pool.x.shape[1] == 38 and canonical(pool) == 18
    assert len(pool.names) == 12 and not any("branch" in c.name for c in pool.columns)
    assert sum(c.group == "" and c.kind == "flag" for c in pool.columns) == 5


def test_vehicle_loan_says_that_50000_rows_are_a_part(decoded):
    found = decoded(vehicle_loan)
    if len(found["y"]) == 233_154:
        pytest.skip("the whole file is there")
    pool = vehicle_loan.pool(found)
    assert "50000 of 233154 loans, 20 of the 20 descriptions" in pool.notes[0]
    largest = [3126, 2863, 2225, 2122, 2062, 1819, 1746, 1746, 1503, 1484, 1356, 1261]
    assert sorted(sizes(pool).values(), reverse=True) == largest


def test_vehicle_loan_as_published_gives_the_target_away(decoded):
    found = decoded(vehicle_loan)
    clean, leak = vehicle_loan.pool(found), vehicle_loan.pool(found, as_published=True)
    at = [c.name for c in clean.columns].index("Missing Features")
    counted = [i for i, c in enumerate(clean.columns) if not c.group and i != at]
    assert (clean.x[:, at] == (clean.x[:, counted] == 0).sum(1)).all()
    assert (leak.x[:, at] - clean.x[:, at] == (leak.y == 0)).all()
    assert (np.delete(leak.x, at, 1) == np.delete(clean.x, at, 1)).all()
    assert found["x"][:, at].max() < 15 and any("gives it away" in note for note in leak.notes)


def test_vehicle_loan_reads_ages_and_years(decoded):
    found = decoded(vehicle_loan)
    names = [name.decode() for name in found["columns"]]
    third = found["x"][2]  # born in 1968, paid in 2018; accounts of 1yrs 7mon
    if len(found["y"]) == 50_000:
        assert third[names.index("Age")] == 50
        assert third[names.index("AVERAGE.ACCT.AGE")] == pytest.approx(19 / 12)
    age = found["x"][:, names.index("Age")]
    assert age.min() > 15 and age.max() < 80


def test_vehicle_loan_takes_as_many_branches_as_asked(decoded):
    found = decoded(vehicle_loan)
    every = vehicle_loan.pool(found, branches=0)
    assert len(every.y) == len(found["y"]) and len(vehicle_loan.pool(found, branches=2).names) == 2
    with pytest.raises(DataError, match=f"expected at most {len(every.names)}"):
        vehicle_loan.pool(found, branches=500)


THETA = [40.2936, -0.12, 0.057, 0.00398, 4.127, -20.5002, 3.3803, 0.00757, -1.7119, 0.33475, -0.01178]
THETA += [-0.90232, 0.00872, -0.55584]  # the paper's appendix A, which is least squares


def test_boston_is_keras_split_and_gives_the_papers_least_squares(decoded):
    pool = boston.pool(decoded(boston))
    learned, server_test = pool.part == -1, pool.part == 4
    assert learned.sum() == 404 and server_test.sum() == 102
    assert (
        pool.x[0, :4].tolist() == [1.23247, 0, 8.14, 0]
        and pool.y[0] == 15.2
        and pool.y[server_test][0] == 7.2
    )
    wide = np.column_stack([np.ones(506), pool.x])
    theta = np.linalg.lstsq(wide[learned], pool.y[learned], rcond=None)[0]
    error = (wide @ theta - pool.y) ** 2
    assert error[learned].mean() == pytest.approx(22.0048, abs=1e-3)
    assert error[server_test].mean() == pytest.approx(23.195599, abs=1e-3)
    assert theta == pytest.approx(THETA, abs=1e-3)


def test_boston_has_four_clients_of_101_rows(decoded):
    pool = boston.pool(decoded(boston), as_published=True)
    assert np.bincount(pool.owner[pool.part == 0]).tolist() == [101] * 4
    assert (np.diff(pool.owner) >= 0).all() and set(pool.part.tolist()) == {0, 4}
    assert [c.name for c in pool.columns if c.kind == "flag"] == ["CHAS"]


def test_boston_as_published_keeps_raw_numbers_in_double_precision(decoded):
    found = decoded(boston)
    federation = partition("boston", boston.pool(found, as_published=True), DataSettings(unseen=0.0), {})
    client_data = federation.clients_data["block-1"].train
    assert client_data.x.dtype == client_data.y.dtype == torch.float64 and federation.exact
    assert np.array_equal(client_data.x.numpy(), found["x"][101:202]) and federation.scale == 1
    assert np.array_equal(client_data.y.numpy(), found["y"][101:202])


def test_boston_is_the_same_from_every_kind_of_file(tmp_path, decoded):
    found = decoded(boston)
    order, values = np.arange(506), np.empty((506, 14))
    np.random.RandomState(113).shuffle(order)
    values[order] = np.column_stack([found["x"], found["y"]])
    for name, between, header in (("boston_housing.csv", ",", "CRIM,ZN"), ("housing.data", "  ", "")):
        (tmp_path / name).mkdir()
        np.savetxt(tmp_path / name / name, values, "%.5f", between, header=header, comments="")
        got = boston.decode(tmp_path / name)
        assert all((got[k] == v).all() for k, v in found.items())


REFUSED = {
    "adult.data": (census, b"39, State-gov, 77516\n", "sha256"),
    "covtype.data": (covertype, b"1,2,3\n", "sha256"),
    "covtype.csv": (covertype, b"a,b\n1,2\n", "columns: 2; expected 55"),
    "covtype.npz": (covertype, b"PK\x03\x04 no more", "truncated or another file"),
    "boston_housing.npz": (boston, b"", "truncated or another file"),
    "boston_housing.csv": (boston, b"CRIM,ZN\n1,2\n", r"rows and columns: \(1, 2\); expected \(506, 14\)"),
    "housing.data": (boston, b"<html> not found", "truncated or another file"),
    "train.csv": (vehicle_loan, b"UniqueID,ltv\n1,2\n", "columns that are not there"),
    "lt_vehicle_loan_50k.csv": (vehicle_loan, b"", "truncated or another file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_file_is_refused_by_name(name, tmp_path):
    module, raw, message = REFUSED[name]
    (tmp_path / name).write_bytes(raw)
    (tmp_path / "adult.test").touch()
    with pytest.raises(DataError, match=message) as e:
        module.decode(tmp_path)
    assert str(tmp_path / name) in str(e.value) and "\nhint: " in str(e.value)


def test_covertype_refuses_rows_that_are_not_all_of_them(tmp_path):
    row = [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279, 1, 0, 0, 0, *[0] * 28, 1, *[0] * 11, 5]
    text = ",".join(f"c{i}" for i in range(55)) + "\n" + ",".join(map(str, row)) + "\n"
    (tmp_path / "covtype.csv").write_text(text)
    with pytest.raises(DataError, match="rows: 1; expected 581012"):
        covertype.decode(tmp_path)


def test_vehicle_loan_refuses_a_file_that_lost_its_end(tmp_path, folder):
    whole = content(next(folder(vehicle_loan).glob("*.csv*")))
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"\n".join(whole.split(b"\n")[:1000])))
    with pytest.raises(DataError, match="rows: 999; expected 233154"):
        vehicle_loan.decode(tmp_path)


@pytest.mark.parametrize("module", [census, covertype, vehicle_loan, boston])
def test_a_folder_without_the_files_says_which_are_expected(module, tmp_path):
    with pytest.raises(DataError, match="has no "):
        module.decode(tmp_path)
    assert module.FOLDERS and all(word in module.ORIGIN for word in [s.file for s in module.SOURCES])
