"""The dashboard in a browser: one headless Chromium walks through it as a person would.

The tests follow each other: a study is started, watched, stopped and goes on; finished runs are looked at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import motet
from motet.runs.store import Store
from motet.runs.study_record import lock_of_study, read_studies
from motet.web.processes import writer_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.xdist_group("browser"),
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run --disable-dev-shm-usage --hide-scrollbars"
)
PATIENCE = 150.0  # seconds for anything that a process does


@dataclass
class Served:
    """A dashboard as a process of its own."""

    process: subprocess.Popen[str]
    address: str
    token: str
    base: Path


def serve(base: Path) -> Served:
    command = [sys.executable, "-m", "motet.cli.main", "ui", str(base), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=base.parent)
    assert process.stderr is not None
    said = "".join(process.stderr.readline() for _ in range(4))
    address, token = re.search(r"http://\S+(?=/)", said), re.search(r"token: +(\S+)", said)
    assert address and token, said
    return Served(process, address[0], token[1], base)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("browser") / "runs"
    for method in ("local", "finetune"):
        motet.run(method=method, data={"name": "wine", "clients": 5}, rounds=8, out=base / f"wine-{method}")
    found = serve(base)
    yield found
    found.process.terminate()
    found.process.wait()
    for study in read_studies(base):
        if pid := writer_of(lock_of_study(base, study.name)):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    downloads = tmp_path_factory.mktemp("downloads")
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    driver.set_window_size(1300, 900)
    driver.downloads = downloads  # type: ignore[attr-defined]
    yield driver
    driver.quit()


def wait(for_what: Callable[[], Any], why: str = "") -> Any:
    """Until something holds; what it gives."""
    until = time.monotonic() + PATIENCE
    while not (found := for_what()):
        assert time.monotonic() < until, f"waited for {why or for_what} in vain"
        time.sleep(0.1)
    return found


def text(browser: Any) -> str:
    return str(browser.execute_script("return document.querySelector('main')?.innerText || ''"))


def click(browser: Any, css: str) -> None:
    """In one step: a live part may be replaced between two."""
    find(browser, css)
    browser.execute_script(f"document.querySelector({json.dumps(css)}).click()")


def find(browser: Any, css: str) -> Any:
    return browser.find_element("css selector", css)


def fill(browser: Any, css: str, value: str) -> None:
    field = find(browser, css)
    field.clear()
    field.send_keys(value)


def rounds_done(browser: Any) -> int:
    """Rounds in the table of a study, all runs together."""
    return sum(int(n) for n in re.findall(r"(\d+) / \d+", text(browser)))


def points(browser: Any) -> str:
    return str(
        browser.execute_script(
            "return document.querySelector('#curves polyline.line').getAttribute('points')"
        )
    )


# ---- the walk ----


def test_signing_in_with_the_token(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/sign-in")
    fill(browser, "#token", "wrong")
    click(browser, "main button")
    wait(lambda: "not the token" in text(browser))
    fill(browser, "#token", served.token)
    click(browser, "main button")
    wait(lambda: "Sign out" in browser.page_source)
    assert "finetune on wine" in text(browser)


def test_a_study_is_started_from_the_form_and_its_mistakes_stand_at_their_fields(
    browser: Any, served: Served
) -> None:
    browser.get(f"{served.address}/start?data=wine")
    for method in ("fedavg", "fedprox", "ditto"):
        click(browser, f"input[name='use.{method}']")
    fill(browser, "[name='train.rounds']", "-3")
    click(browser, "button[name=start]")
    wait(lambda: "Nothing was started" in text(browser))
    assert find(browser, "[name='train.rounds']").get_attribute("aria-invalid") == "true"
    assert not find(browser, "input[name='use.ditto']").is_selected()
    fill(browser, "[name='train.rounds']", "100000")  # more than it can do while it is watched
    fill(browser, "[name='data.clients']", "5")
    for name, value in (("train.patience", "0"), ("save.checkpoint", "0"), ("train.evaluate", "1")):
        section = name.split(".")[0]
        browser.execute_script(f"document.getElementById('section-{section}').open = true")
        fill(browser, f"[name='{name}']", value)
    click(browser, "button[name=start]")
    wait(lambda: "/studies/wine-" in browser.current_url, "the study's page")


def test_the_curves_move_while_it_trains(browser: Any, served: Served) -> None:
    wait(lambda: browser.find_elements("css selector", "#live[data-live]"), "a study that trains")
    wait(lambda: browser.find_elements("css selector", "#curves polyline.line"), "the first curve")
    before = rounds_done(browser), points(browser)
    wait(lambda: rounds_done(browser) > before[0] + 2, "more rounds")
    assert points(browser) != before[1]
    assert "running" in text(browser)


def test_a_kill_of_the_dashboard_does_not_touch_the_runs(browser: Any, served: Served) -> None:
    study = read_studies(served.base)[0]
    pid = writer_of(lock_of_study(served.base, study.name))
    served.process.kill()
    served.process.wait()
    run = served.base / wait(lambda: read_studies(served.base)[0].folders)[0]
    before = rounds_in(run)
    wait(lambda: rounds_in(run) > before, "rounds after the kill")
    assert writer_of(lock_of_study(served.base, study.name)) == pid
    again = serve(served.base)
    served.process, served.address, served.token = again.process, again.address, again.token
    browser.get(f"{served.address}/sign-in")
    fill(browser, "#token", served.token)
    click(browser, "main button")


def rounds_in(run: Path) -> int:
    store = Store(run)
    try:
        return len(store.read("rounds"))
    finally:
        store.close()


def test_it_is_stopped_and_goes_on(browser: Any, served: Served) -> None:
    study = read_studies(served.base)[0].name
    browser.get(f"{served.address}/studies/{study}")
    click(browser, "form[action$='/stop'] button")
    wait(
        lambda: browser.find_elements("css selector", "form[action$='/resume'] button"), "the button to go on"
    )
    assert writer_of(lock_of_study(served.base, study)) is None
    before = {f: rounds_in(served.base / f) for f in read_studies(served.base)[0].folders}
    click(browser, "form[action$='/resume'] button")
    more = lambda: any(rounds_in(served.base / f) > n for f, n in before.items())  # noqa: E731
    wait(more, "rounds after going on")
    wait(lambda: browser.find_elements("css selector", "form[action$='/stop'] button"), "the button to stop")
    click(browser, "form[action$='/stop'] button")
    wait(lambda: writer_of(lock_of_study(served.base, study)) is None, "the end of the process")


def test_a_client_is_opened_from_its_run(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/runs/wine-finetune")
    click(browser, "a[href*='client?name=']")
    wait(lambda: "Guards, budget and traffic" in text(browser))
    assert "training rows" in text(browser) and "On its own test examples" in text(browser)


def test_two_runs_are_ticked_and_compared(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/?q=wine")
    for name in ("wine-local", "wine-finetune"):
        click(browser, f"input[value='{name}']")
    click(browser, "form[action='/compare'] button")
    wait(lambda: "Clients, one by one" in text(browser))
    names = {e.get_attribute("data-name") for e in browser.find_elements("css selector", "#chart-1 polyline")}
    assert names == {"local", "finetune"}


def test_a_model_is_promoted_and_exported(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/runs/wine-finetune/client?name=client-0")
    click(browser, "#promote summary")
    fill(browser, "#p-name", "triage")
    fill(browser, "#p-by", "Ada")
    click(browser, "#promote button")
    wait(lambda: "version 1" in text(browser), "the promoted model")
    assert "Ada" in text(browser) and "client-0" in text(browser)
    click(browser, "a[href='/models/triage/1/file']")
    file = browser.downloads / "triage-v1.safetensors"
    wait(file.exists, "the file")
    stored = served.base / "wine-finetune" / "models" / "client-0.safetensors"
    assert wait(file.read_bytes) == stored.read_bytes()


PAGES = {
    "runs": "/", "studies": "/studies", "study": "", "run": "/runs/wine-finetune", "models": "/models",
    "client": "/runs/wine-finetune/client?name=client-0", "compare": "/compare?run=wine-local&run=wine-finetune",
    "federations": "/federations", "start": "/start", "start-run": "/start?kind=run", "sign-in": "/sign-in",
    "not-found": "/runs/nothing",
}  # fmt: skip


@pytest.mark.parametrize(("theme", "width"), [("light", 1300), ("dark", 420)])
def test_axe_finds_nothing_serious(browser: Any, served: Served, theme: str, width: int) -> None:
    import axe_playwright_python

    axe = (Path(str(axe_playwright_python.__file__)).parent / "axe.min.js").read_text()
    pages = PAGES | {"study": f"/studies/{read_studies(served.base)[0].name}"}
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    for name, address in pages.items():
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(served.address + address)
        found = browser.execute_async_script(
            axe + ";const done = arguments[0]; axe.run().then((r) => done(JSON.stringify(r.violations)))"
        )
        serious = [v for v in json.loads(found) if v["impact"] in ("serious", "critical")]
        said = [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"]) for v in serious]
        assert said == [], (name, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, name
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_keyboard_reaches_everything(browser: Any, served: Served) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(f"{served.address}/runs/wine-finetune")
    names = []
    for _ in range(14):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        names.append(browser.execute_script("return document.activeElement.innerText"))
    assert names[0] == "Skip to the content" and {"Runs", "Compare", "Start", "Sign out"} <= set(names)


def test_nothing_was_asked_of_another_machine_and_the_console_is_silent(browser: Any, served: Served) -> None:
    messages = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    strange = {u for u in asked if not u.startswith(("http://127.0.0.1:", "data:", "blob:", "chrome:"))}
    assert len(asked) > 50 and strange == set()
    said = [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    # a page that is not there and a wrong token are answers; the dashboard was killed once
    usual = re.compile(
        r"status of (404|403|422)|ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET"
    )
    assert [e["message"] for e in said if not usual.search(e["message"])] == []
