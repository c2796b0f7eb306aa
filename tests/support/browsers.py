"""A browser without a window, or the reason why there is none."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any


def missing() -> str:
    """Return what is missing for a browser; "": nothing."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt install chromium chromium-driver)"
    return "" if importlib.util.find_spec("selenium") else "selenium is not installed"


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium, and end it at the end of the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


def look_as(driver: Any, width: int, height: int, theme: str = "light") -> None:
    """Set the size and the theme of the page."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def requested(driver: Any) -> set[str]:
    """Return the addresses that pages have requested since the last call."""
    import json

    messages = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return {each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"}
