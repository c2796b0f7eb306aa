"""The page in a real browser: what it draws, that it obeys its own policy, sends requests only to its server, and
fits a telephone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from browsers import chromium, look_as, missing, requested
from played_dashboard import TOKEN, PlayedSource, served
from waiting import until

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    # Selenium leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


def open_page(browser: Any, url: str, width: int = 1200, theme: str = "light") -> None:
    look_as(browser, width, 1400, theme)
    browser.get(f"{url}/?token={TOKEN}")
    until(lambda: drawn(browser) >= 1, "the page is drawn")
    until(lambda: browser.find_elements("css selector", ".tile"), "the ranks are there")


def drawn(browser: Any) -> int:
    return int(browser.execute_script("return document.body.dataset.drawn || 0"))


def text_of(browser: Any, selector: str) -> str:
    return str(browser.find_element("css selector", selector).text)


def test_what_it_draws_and_whom_it_asks(browser: Any) -> None:
    requested(browser)
    with served(PlayedSource()) as url:
        open_page(browser, url)
        assert text_of(browser, "#sentence") == "Rank 3 is slow: the others wait 29% of the time longer."
        assert [each.text for each in browser.find_elements("css selector", ".tile b")] == [
            *("rank 0", "rank 2", "rank 1", "rank 3")
        ]
        assert text_of(browser, ".tile.slow .word") == "slow"
        assert len(browser.find_elements("css selector", "#chart .m-loss, #chart .m-join, #chart .m-stall")) == 3
        assert "train.py:42" in text_of(browser, "#stalls")
        assert "<script>alert(1)</script>" in text_of(browser, "#output"), "output is text"
        before = drawn(browser)
        until(lambda: drawn(browser) > before, "another event is drawn")
        assert "token" not in browser.current_url
        asked = {urlsplit(each).netloc for each in requested(browser) if not each.startswith("data:")}
        assert asked == {urlsplit(url).netloc}
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_output_of_one_rank_and_search(browser: Any) -> None:
    with served(PlayedSource()) as url:
        open_page(browser, url)
        browser.execute_script("document.querySelector('.tile.slow').focus()")
        browser.switch_to.active_element.send_keys(" ")  # By keyboard alone.
        until(lambda: "step 3" in text_of(browser, "#output"), "the chosen rank's line is shown")
        assert "alert(1)" not in text_of(browser, "#output")
        assert browser.find_element("css selector", ".tile.slow").get_attribute("aria-pressed") == "true"
        browser.execute_script("document.querySelector('.tile.slow').click()")
        browser.find_element("css selector", "#search").send_keys("NaN")
        until(lambda: text_of(browser, "#output") == "worker 0 │ warning: loss is nan", "one line is found")
        assert text_of(browser, "#output mark") == "nan"


@pytest.mark.parametrize("ranks", [4, 256])
def test_it_fits_a_telephone(browser: Any, ranks: int) -> None:
    with served(PlayedSource(ranks)) as url:
        open_page(browser, url, 400, "dark")
        wide = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide == [400, 400], "nothing lies beyond the right edge"
        assert len(browser.find_elements("css selector", ".tile")) == ranks
        assert text_of(browser, ".tile.slow .word") == "slow"


def test_the_list_of_jobs_leads_to_one(browser: Any) -> None:
    with served(PlayedSource(), job="") as url:
        look_as(browser, 800, 900)
        browser.get(f"{url}/?token={TOKEN}")
        until(lambda: browser.find_elements("css selector", "#jobs a"), "the jobs are listed")
        assert "fair-share" in text_of(browser, "#cluster-summary")
        browser.find_element("link text", "otter").click()
        until(lambda: browser.find_elements("css selector", ".tile"), "the job is shown")
        assert browser.title == "otter · farandole"
        browser.execute_script("location.hash = '#job=nobody'")
        until(lambda: "There is no job nobody" in text_of(browser, "#error"), "a name of no job is told")
