"""The page: true sentences, nothing unescaped, nothing fetched."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from motet.report.html import write
from motet.report.read import read

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = '<script>alert("x")</script> & $a_b$'


class Tags(HTMLParser):
    """Every tag and attribute of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [
            v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "srcset", "data")
        ]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def folders(make_once):
    make = make_once
    names = ["a", "b", "c", EVIL]
    alone = dict(zip(names, (0.5, 0.9, 0.4, 0.6), strict=True))
    return [
        make("local", alone),
        make(
            "fedavg", dict.fromkeys(names, 0.6), shared=dict.fromkeys(names, 0.6), unseen={"u": (0.5, 0.75)}
        ),
        make("finetune", {n: v + 0.2 if n != "b" else 0.8 for n, v in alone.items()}),
        make("centralised", dict.fromkeys(names, 0.95)),
        make(
            "scaffold",
            dict.fromkeys(names, 0.1),
            status="failed",
            failure=f"loss is nan at {EVIL}",
            reported=None,
        ),
    ]


@pytest.fixture(scope="module")
def page(folders, tmp_path_factory) -> str:
    return page_of(folders, tmp_path_factory.mktemp("page"), title=EVIL)


def page_of(folders, tmp_path: Path, **more) -> str:
    return write(read(folders), tmp_path / "out" / "report.html", **more).read_text()


def test_the_verdict_comes_first(page):
    text = re.sub(r"\s+", " ", Tags(page).text)
    assert "Whether federating helps cannot be told here: +12.5 points of accuracy on average" in text
    assert "Best of the federated methods: finetune" in text and "all rows in one place (centralised)" in text
    assert "scaffold: 1 of 1 runs failed." in text


def test_names_from_a_store_are_escaped_everywhere(page):
    found = Tags(page)
    assert "<script>alert" not in page
    assert found.tags.count("script") == 1  # our own, for sorting
    assert found.text.count(EVIL) >= 3  # title, failure, table


def test_a_page_fetches_nothing(page):
    assert all(link.startswith(("#", "data:text/csv;")) for link in Tags(page).links)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src &#39;none&#39;" in page


def test_the_same_runs_give_the_same_bytes(page, folders, tmp_path):
    assert page == page_of(folders, tmp_path, title=EVIL)


def test_ids_of_pictures_do_not_clash(page):
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 50


def test_text_in_pictures_is_text_and_ink_is_the_pages(page):
    svg = page.split("<svg")[1]
    assert ">finetune</text>" in svg and "fill: currentColor" in svg and "#010203" not in svg


def test_numbers_of_a_figure_can_be_saved_from_the_page(page):
    links = [link for link in Tags(page).links if link.startswith("data:text/csv;")]
    assert len(links) == page.count("<figure") == page.count('class="drawing"')
    first = base64.b64decode(links[0].split("base64,")[1]).decode()
    assert first.startswith("label,side,round,score") and "\nfinetune,personal,0," in first


def test_each_figure_is_told_in_words(page):
    told = re.findall(r'<svg role="img" aria-label="([^"]+)"', page)
    assert len(told) == page.count("<svg") and all(len(text) > 40 for text in told)


def test_a_single_run_has_a_page(make, tmp_path):
    page = page_of([make("ditto", {"a": 0.5, "b": 1.0}, shared={"a": 0.75, "b": 0.5})], tmp_path)
    text = re.sub(r"\s+", " ", Tags(page).text)
    assert "ditto: 75.0 % accuracy on average over 2 clients" in text
    assert "Whether federating helps needs a run of local to compare with" in text


def test_runs_that_all_failed_have_a_page(make, tmp_path):
    page = page_of(
        [make("ditto", {"a": 0.1}, status="failed", failure="no space left", reported=None)], tmp_path
    )
    assert "No method has test scores" in page and "no space left" in page


def test_runs_that_all_diverged_before_their_first_scores_have_a_page(make, tmp_path):
    why = "diverged in round 1: the validation loss of client a is 1e+17 (lr=3.0)"
    folders = [
        make(m, {"a": 0.1}, val=[], status="failed", failure=why, reported=None) for m in ("ditto", "local")
    ]
    page = page_of(folders, tmp_path)
    assert "No method has test scores" in page and why in page and "Validation over rounds" not in page


def test_a_hint_stands_once_whatever_the_number_of_seeds(make, tmp_path):
    why = "round 2: loss is nan\nhint: a smaller learning rate"
    folders = [
        make("ditto", {"a": 0.1}, seed=s, status="failed", failure=why, reported=None) for s in range(3)
    ]
    page = page_of(
        [*folders, make("local", {"a": 0.5}), make("page", {"a": 0.5}, status="running")], tmp_path
    )
    assert page.count("a smaller learning rate") == 1 and "seeds 0, 1, 2: round 2: loss is nan" in page
    assert "1 of 1 runs not finished" in page


def test_errors_have_a_page(make, tmp_path):
    folders = [make(m, {"a": s, "b": s}, metric="rmse") for m, s in (("local", 2.0), ("ditto", 1.5))]
    text = Tags(page_of(folders, tmp_path)).text
    assert "0.500 less error (RMSE) at each of 2 clients, too few for an interval" in text
    assert "smaller is better" in text


def test_ten_thousand_clients_fit_in_two_megabytes(make, tmp_path):
    scores = {f"client-{i}": (i % 997) / 1000 for i in range(10_000)}
    page = page_of([make(m, scores) for m in ("local", "ditto")], tmp_path)
    assert len(page.encode()) < 2_000_000
    assert "Shown are 200 of 10,000 clients" in page


def browse(page: Path, folder: Path, *options: str) -> str:
    """What Chromium prints about a page, in an empty profile."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}", *options, page.as_uri(),
    ]  # fmt: skip
    browser = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True
    )
    try:
        return browser.communicate(timeout=60)[0]
    finally:
        if browser.poll() is None:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()


MEASURE = """<iframe src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe><pre></pre><script>
document.querySelector("iframe").addEventListener("load", event => {{
  const page = event.target.contentDocument, all = s => [...page.querySelectorAll(s)];
  const shown = all("figure svg").filter(e => e.getClientRects().length);
  const letters = svg => Math.min(...[...svg.querySelectorAll("text")].map(e => e.getBoundingClientRect()).map(
    r => Math.min(r.width, r.height)));
  document.querySelector("pre").textContent = JSON.stringify({{
    page: page.documentElement.scrollWidth, tables: all(".wide").map(e => e.scrollWidth - e.clientWidth),
    figures: shown.length, letters: shown.map(letters),
    drawings: all("a.drawing").filter(e => e.href.startsWith("data:image/svg+xml") && !e.hidden).length}});
}});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1300, 420])
def test_nothing_scrolls_sideways_that_need_not_and_letters_stay_readable(make, tmp_path, width):
    names = [f"client-{i:02}" for i in range(20)]
    methods = ("local", "fedavg", "fedprox", "ditto", "finetune", "centralised")
    folders = [make(m, {c: (i + k) % 9 / 10 for k, c in enumerate(names)}) for i, m in enumerate(methods)]
    page_of(folders, tmp_path)
    frame = tmp_path / "frame.html"
    frame.write_text(MEASURE.format(page=(tmp_path / "out" / "report.html").as_uri(), width=width))
    size = f"--window-size={max(width, 600)},1000"
    text = browse(
        frame, tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=9000", size, "--dump-dom"
    )
    found = json.loads(re.findall(r"<pre>(.*?)</pre>", text)[0])
    assert found["page"] <= width and found["figures"] == found["drawings"] == 6
    assert min(found["letters"]) >= 6  # pixels: across the smallest letters, names on their side among them
    assert width < 1300 or set(found["tables"]) == {0}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_the_page_and_asks_nobody(page, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page)
    shot, log = tmp_path / "shot.png", tmp_path / "net.json"
    browse(file, tmp_path, f"--log-net-log={log}", "--window-size=1100,2400", f"--screenshot={shot}")
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 20_000
    wanted = re.findall(r'"url":"(https?://[^"]+)"', log.read_text())
    errands = re.compile(r"https?://[\w.-]+\.(google|googleapis|gstatic|gvt1)\.com/")  # the browser's own
    assert not [url for url in wanted if not errands.match(url)]


def test_groups_are_drawn_where_a_method_recorded_them(make, tmp_path):
    clients = [f"c{i}" for i in range(5)] + [EVIL]
    places = {c: [float(i % 2), i / 10] for i, c in enumerate(clients)}
    groups = {c: i % 2 for i, c in enumerate(clients)}
    record = {"groups": groups, "places": places, "share": 0.9, "silhouette": 0.75}
    run = make("fedperc", dict.fromkeys(clients, 0.5), record=record)
    page = write(read([run]), tmp_path / "a.html").read_text()
    assert "Groups of clients" in page and "2 groups, silhouette 0.75, 90% of the variance shown" in page
    assert EVIL not in page
    alone = make("fedavg", dict.fromkeys(clients, 0.5))
    assert "Groups of clients" not in write(read([alone]), tmp_path / "b.html").read_text()
