# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in headless Chromium: nothing on the console, nothing hostile runs, keyboard, contrast (axe-core)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import tarfile
import time
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.llmhost.hardening.plugins.module_utils.report import document, page

AXE = "axe-core@4.14.1"
PICTURES = Path(__file__).resolve().parents[2] / ".build/report"
NOW = 1_795_993_300.0
HOSTILE = '<script>window.pwned=1</script><img src=x onerror="window.pwned=1">"><svg onload=window.pwned=1>'


def made(name: str, number: int) -> dict[str, Any]:
    statuses = ("pass", "fail", "unknown", "waived", "not_applicable")
    ages = {"limit_seconds": 86700, "oldest_age_seconds": 4000, "ages": [[60, 3], [86400, 20], [172800, 2], [None, 0]]}
    results = [
        {
            "control": f"KV-{control:02}",
            "title": "a title",
            "severity": "high",
            "tier": "chat",
            "status": statuses[(number + control) % 5],
            "message": HOSTILE,
            "remedy": "kvtier prepare chat",
            "evidence": {**ages, "name": HOSTILE},
        }
        for control in range(1, 17)
    ]
    history = [{"time": NOW + 3600 * hour, "verdict": "pass", "tiers": {}} for hour in (0, 1, 2, 9, 10)]
    tiers = [{"name": "chat", "store": "vllm_fs", "path": HOSTILE, "retention_minutes": 1440}]
    return document.host(name, {"audit": {"time": NOW, "results": results}, "history": history}, {"tiers": tiers})


class Browser:
    """A session of chromedriver, spoken to without a library."""

    def __init__(self, driver: str) -> None:
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._base = driver
        answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base = f"{driver}/session/{answer['sessionId']}"

    def _send(self, method: str, path: str, data: Any = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self._base + path, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, path: Path) -> None:
        self._send("POST", "/url", {"url": path.as_uri()})

    def run(self, script: str, kind: str = "sync") -> Any:
        return self._send("POST", f"/execute/{kind}", {"script": script, "args": []})

    def cdp(self, command: str, **params: Any) -> Any:
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def keys(self, *keys: str) -> None:
        presses = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": presses}]})

    def log(self) -> list[Any]:
        return list(self._send("POST", "/se/log", {"type": "browser"}))

    def end(self) -> None:
        self._send("DELETE", "")


@pytest.fixture(scope="module")
def browser():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    session = None
    try:
        for _try in range(100):
            with contextlib.suppress(OSError):
                session = Browser(f"http://127.0.0.1:{port}")
                break
            time.sleep(0.2)
        assert session is not None, "chromedriver did not start"
        yield session
        session.end()
    finally:
        driver.terminate()
        driver.wait(10)


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    place = Path(os.environ.get("LLMHOST_CACHE", Path.home() / ".cache/llmhost"), "axe")
    script = place / "package/axe.min.js"
    if not script.exists():
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", AXE], cwd=place, check=True, stdout=subprocess.DEVNULL)
        (packed,) = place.glob("axe-core-*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(place, filter="data")
    return script.read_text()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    hosts = [made(f"gpu{number}", number) for number in range(8)] + [made(HOSTILE, 3)]
    hosts.append(document.host("lost", {"unreachable": True, "msg": HOSTILE}))
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(page.render(document.build(hosts, NOW)))
    return file


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    file = tmp_path_factory.mktemp("large") / "report.html"
    file.write_text(page.render(document.build([made(f"gpu{number:04}", number) for number in range(1000)], NOW)))
    return file


def pictured(browser, name):
    """The first screen as it is seen, kept for whoever wants to look; how many grey values it has."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    data = base64.b64decode(browser.cdp("Page.captureScreenshot", format="png")["data"])
    (PICTURES / f"{name}.png").write_bytes(data)
    return len(set(zlib.decompress(b"".join(chunks(data)))))


def pages_of(browser):
    """How many pages the report is on paper; the last one printed is kept too."""
    paper = base64.b64decode(browser.cdp("Page.printToPDF", printBackground=True)["data"])
    (PICTURES / "report.pdf").write_bytes(paper)
    return max(int(number) for number in re.findall(rb"/Count (\d+)", paper))


def chunks(png):
    """What an image's pixels are packed in."""
    place = 8
    while place < len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        if png[place + 4 : place + 8] == b"IDAT":
            yield png[place + 8 : place + 8 + length]
        place += 12 + length


def test_nothing_hostile_runs_and_nothing_is_on_the_console(browser, path):
    browser.open(path)
    time.sleep(0.5)
    assert browser.run("return window.pwned || null") is None
    assert browser.log() == []
    assert browser.run("return document.querySelectorAll('img,iframe,object').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_either_scheme(browser, path, axe, scheme):
    browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.run(axe)
    found = browser.run("const done = arguments[0]; axe.run().then(r => done(r.violations))", "async")
    assert pictured(browser, scheme) > 20
    assert [(one["id"], one["nodes"][0]["html"][:200], len(one["nodes"])) for one in found] == []


def test_the_filter_works_by_keyboard_alone(browser, path):
    browser.open(path)
    tab, seen = "\ue004", []
    for _press in range(5):
        browser.keys(tab)
        seen.append(browser.run("return document.activeElement.id || document.activeElement.className"))
    assert seen[:3] == ["skip", "q", "st"]
    browser.run("document.getElementById('q').focus()")
    browser.keys(*"gpu3")
    assert browser.run("return document.getElementById('n').textContent") == "1 hosts shown"


def test_a_thousand_hosts_stay_usable(browser, large):
    began = time.monotonic()
    browser.open(large)
    assert browser.run("return document.querySelectorAll('div[data-host]').length") == 1000
    opened = time.monotonic() - began
    assert pictured(browser, "thousand") > 20
    browser.run("document.getElementById('q').focus()")
    began = time.monotonic()
    browser.keys(*"gpu0042")
    assert browser.run("return document.getElementById('n').textContent") == "1 hosts shown"
    filtered = time.monotonic() - began
    print(f"1,000 hosts, {large.stat().st_size >> 10} KiB: open after {opened:.1f} s, filtered after {filtered:.1f} s")
    assert browser.log() == [] and browser.run("return window.pwned || null") is None
    assert (opened, filtered) < (60, 60)


def test_on_paper_everything_is_unfolded_and_the_tools_are_gone(browser, path):
    browser.open(path)
    browser.cdp("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        hidden = "const one = document.querySelector('.tools'); return getComputedStyle(one).display"
        assert browser.run(hidden) == "none"
        assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
        assert pictured(browser, "print") > 20
    finally:
        browser.cdp("Emulation.setEmulatedMedia", media="", features=[])
    assert pages_of(browser) > 5


def test_a_thousand_hosts_can_be_printed_and_one_of_them_with_its_evidence(browser, large):
    browser.open(large)
    began = time.monotonic()
    whole = pages_of(browser)
    print(f"1,000 hosts are {whole} pages, after {time.monotonic() - began:.1f} s")
    assert 50 < whole < 500
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0
    browser.run("document.getElementById('q').focus()")
    browser.keys(*"gpu0042")
    assert pages_of(browser) < 30
    assert browser.run("return document.querySelectorAll('details[open]').length") > 5


def test_the_facts_are_there_without_javascript(browser, path):
    browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(path)
        assert browser.cdp("DOM.getDocument")["root"]
        text = browser.cdp("Accessibility.getFullAXTree")["nodes"]
        names = {node.get("name", {}).get("value") for node in text}
        assert {"Data map", "gpu3", "Waivers"} <= names
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)
