"""Shakespeare: LEAF's roles, windows that stay within a role, and PAGE's parts."""

import zipfile

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.files import plays
from motet.data.files.local_files import content, find
from motet.data.sets import shakespeare


@pytest.fixture(scope="module")
def page(decoded):
    return shakespeare.pool(decoded(shakespeare), seed=0)


def text_of(codes):
    return "".join(plays.ALPHABET[c] for c in codes)


def test_the_text_has_leafs_roles(folder):
    # LEAF's patterns find 1,326 pairs of work and role; 19 are lines of sonnets, 5 are headings of acts
    # (LEAF drops both), and 2 are lines of the licence, which have more than one "speech" each.
    found = plays.speeches(folder(shakespeare))
    many = [len(all_) for all_ in found.values()]
    assert len({play for play, _ in found}) == 36 and len(many) == 1326 - 19 - 5 - 2
    assert sum(n >= 2 for n in many) == 1088 - 2 and sum(n >= 50 for n in many) == 196


def test_decoded_text_has_a_start_for_every_role_and_no_object(decoded):
    found = decoded(shakespeare)
    assert found["text"].dtype == np.uint8 and found["text"].max() == 79
    assert len(found["start"]) == len(found["names"]) + 1 and found["start"][-1] == len(found["text"])
    assert found["names"].dtype.kind == "S" and len(set(found["names"].tolist())) == 1128
    assert (np.diff(found["start"]) - 80).sum() == 4_223_796
    at = found["names"].tolist().index(b"THE TRAGEDY OF HAMLET, PRINCE OF DENMARK: HAM")
    assert "To be, or not to be- that is the question: " in text_of(
        found["text"][found["start"][at] : found["start"][at + 1]]
    )


def test_page_has_100_roles_with_4900_700_and_1400_windows_and_1000_for_the_server(page):
    assert len(page.names) == 100 and page.x.shape[1] == 80 and page.x.dtype == np.uint8
    counts = np.stack([np.bincount(page.owner[page.part == p], minlength=100) for p in (0, 1, 2, 4)])
    assert (counts == [[4900], [700], [1400], [1000]]).all()
    assert "100 roles are drawn of 149" in page.notes[0] and len(page.notes) == 1
    assert len(page.classes) == len(set(page.classes)) == 80 and page.classes[:3] == ("newline", "space", "!")


def test_windows_that_are_used_lie_within_what_their_role_says(page, decoded):
    found, names = decoded(shakespeare), [n.decode() for n in decoded(shakespeare)["names"]]
    for i in np.random.default_rng(0).choice(np.flatnonzero(page.part < 5), 200, replace=False):
        at = names.index(page.names[page.owner[i]])
        said = bytes(found["text"][found["start"][at] : found["start"][at + 1]])
        assert bytes([*page.x[i], page.y[i]]) in said


def test_inputs_for_the_server_share_no_character_with_those_at_home():
    start, windows = 1000, 10_000
    for seed in range(20):
        client_data, away = shakespeare.cut(0, start, windows, 7000, 1000, np.random.default_rng(seed))
        assert start <= client_data.start and client_data.start + 7000 <= start + 8000
        assert client_data.start + 6999 + 80 <= away.start and away.start + 1000 <= start + windows


def test_nothing_is_copied_for_windows_and_the_unused_are_nobodys(page):
    assert page.x.base is not None and page.x.strides == (1, 1)
    assert (page.part == 5).sum() == 200 * 80 - 80 and len(page.x) == len(page.y) == len(page.part)
    follows = page.x[1:, -1] == page.y[:-1]
    assert follows.all()  # the target of a window ends the next one


def test_the_seed_draws_roles_and_places(decoded):
    found = decoded(shakespeare)
    one, same, other = (shakespeare.pool(found, seed=s) for s in (1, 1, 2))
    assert one.names == same.names and (one.y == same.y).all() and one.digest == same.digest
    assert one.names != other.names and one.digest != other.digest


def test_a_quick_choice_is_small(decoded):
    pool = shakespeare.pool(decoded(shakespeare), seed=0, users=20, crop=500, least=1000, server_test=100)
    assert len(pool.names) == 20 and np.bincount(pool.part).tolist()[:3] == [7000, 1000, 2000]
    assert (pool.part == 4).sum() == 2000


def test_all_windows_are_at_home_without_a_crop(decoded):
    found = decoded(shakespeare)
    pool = shakespeare.pool(found, seed=0, users=2000, crop=0, least=0, server_test=0)
    windows = np.diff(found["start"]) - 80
    assert (pool.part < 3).sum() == (0.8 * windows).astype(int)[0.8 * windows >= 10].sum()
    assert "2000 roles were asked for" in pool.notes[1]


def test_too_much_asked_is_refused(decoded):
    found = decoded(shakespeare)
    with pytest.raises(DataError, match="no role has 10000000 windows"):
        shakespeare.pool(found, seed=0, least=10_000_000)
    with pytest.raises(DataError, match="users is 0; expected at least 1"):
        shakespeare.pool(found, seed=0, users=0)


def test_gutenbergs_zip_is_read_too(tmp_path, decoded, folder):
    text = content(find(folder(shakespeare), "t8.shakespeare.txt", "100.txt")).decode()
    with zipfile.ZipFile(tmp_path / "1994-01-100.zip", "w") as archive:
        archive.writestr("100.txt", text.replace("\n", "\r\n"))
    got = shakespeare.decode(tmp_path)
    assert all((got[k] == v).all() for k, v in decoded(shakespeare).items())


def test_roles_of_the_flat_play_are_found_without_indentation():
    lines = [
        "ACT I. SCENE 1",
        "none",
        "Duke. Well.",
        "  Speak",
        "<Exit",
        "lost",
        "ACT II. SCENE",
        "DUKE. So.",
    ]
    assert list(plays.spoken(lines, flat=True)) == [("DUKE", ["Well.", "  Speak"]), ("DUKE", ["So."])]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("t8.shakespeare.txt", b"THE SONNETS", "md5"),
        ("1994-01-100.zip", b"PK", "truncated or another file"),
        ("100.txt", b"A PLAY\n\n\nby William Shakespeare\n\n  ROLE. Word.\n", "plays: 1; expected 36"),
        ("100.txt", b"", "plays: 0; expected 36"),
    ],
)
def test_a_wrong_text_is_refused_by_name(name, raw, message, tmp_path):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=message) as e:
        shakespeare.decode(tmp_path)
    assert name in str(e.value)


def test_characters_outside_the_alphabet_are_refused():
    assert plays.encode("\n A}").tolist() == [0, 1, 25, 79]
    with pytest.raises(DataError, match="alphabet: '~' 'é'"):
        plays.encode("caf~é")
