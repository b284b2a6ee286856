"""A headless Chromium, driven by Selenium."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.harness import HANG

FLAGS = """
--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync
"""


BROKEN = r"""
const broken = [], walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT)
const tops = (range) => new Set([...range.getClientRects()].map((each) => Math.round(each.top)))
while (walk.nextNode()) {
  const node = walk.currentNode
  if (!node.parentElement.checkVisibility() || node.parentElement.closest("svg, .unseen, option")) continue
  for (const word of node.data.matchAll(/[^\s-]+/g)) {
    const range = document.createRange()
    range.setStart(node, word.index)
    range.setEnd(node, word.index + word[0].length)
    if (tops(range).size > 1) broken.push(word[0])
  }
}
return broken
"""
"""A script that returns the words that go on in another line, other than behind a hyphen."""


class Browser:
    """A headless Chromium; every call blocks, so tests use it in a thread."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        # As if it were in front of every other window, such as those of other browsers.
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.driver.get(url)

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)

    def wait(self, condition: Callable[[], object]) -> Any:
        """Wait until something becomes true."""
        from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, HANG, 0.05, [StaleElementReferenceException])
        try:
            return waiting.until(lambda _: condition())
        except TimeoutException:
            raise AssertionError(
                f"{self.focused()!r} has the focus on {self.driver.current_url}: {self.text('body')}"
            ) from None

    def text(self, selector: str) -> str:
        """The text of an element, empty if it is not there or hidden."""
        found = "const found = document.querySelector(arguments[0]);"
        return self.script(f"{found} return found?.checkVisibility() ? found.innerText : ''", selector)

    def shows(self, selector: str, text: str) -> None:
        self.wait(lambda: text in self.text(selector))

    def broken_words(self) -> list[str]:
        """The words of the page that are broken inside."""
        return self.script(BROKEN)

    def press(self, *keys: str) -> None:
        """Press keys, whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """The accessible name of what has the focus."""
        return self.driver.switch_to.active_element.accessible_name

    def click(self, selector: str) -> None:
        """Click what is there, or comes: parts of a page are fetched behind it."""
        from selenium.webdriver.support import expected_conditions
        from selenium.webdriver.support.ui import WebDriverWait

        wanted = expected_conditions.element_to_be_clickable(("css selector", selector))
        clickable: Any = WebDriverWait(self.driver, HANG, 0.05).until(wanted)
        clickable.click()

    def answer(self, *, yes: bool) -> str:
        """Answer a question of the page; return it."""
        from selenium.webdriver.support import expected_conditions
        from selenium.webdriver.support.ui import WebDriverWait

        asked: Any = WebDriverWait(self.driver, HANG, 0.05).until(expected_conditions.alert_is_present())
        text = asked.text
        (asked.accept if yes else asked.dismiss)()
        return text

    def complaints(self) -> list[str]:
        """What the console has, since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def violations(self) -> list[str]:
        """What axe finds wrong with the page for people who do not see it, or not well."""
        self.script(files("axe_core_python").joinpath("axe.min.js").read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then(done, (error) => done({error: String(error)}))"
        )
        assert "violations" in found, found
        return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found["violations"]]


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing() -> str:
    """What is not installed, empty if nothing is."""
    if not find_spec("selenium"):
        return "selenium"
    return "" if chromium() and shutil.which("chromedriver") else "chromium, chromium-driver"


def browse(folder: Path) -> Browser:
    """Start a browser that keeps its files in a folder; the caller quits its driver."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium() or ""
    for flag in [*FLAGS.split(), f"--user-data-dir={folder}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Browser(webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))))
