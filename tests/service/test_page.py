"""The web page in Chromium, if it is installed: answers, class names, errors, keyboard, small screens."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slimprompt.service.app import create_app
from slimprompt.service.limits import Limits
from slimprompt.service.models import ServedModel
from tests.service.conftest import served

pytest.importorskip("selenium", reason="selenium is not installed (pip install 'slimprompt[dev]')")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
DROP = """const data = new DataTransfer();
for (const [name, kind, text] of arguments[0]) {
  data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, { type: kind }));
}
const target = document.getElementById("drop");
for (const kind of ["dragenter", "dragover", "drop"]) target.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
"""
PASTE = DROP.split("const target")[0] + (
    'document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));'
)


class Tab:
    """The page of a service in a browser."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address
        self.set_width(1280)
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get(f"{address}/")

    def set_width(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda _: condition())

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return self.driver.execute_script(script, selector)

    def ready(self) -> Tab:
        self.wait(lambda: "classes." in self.find("#facts").text)
        return self

    def give(self, *files: Path, how: str = DROP) -> None:
        kinds = {".png": "image/png", ".txt": "text/plain"}
        given = [(path.name, kinds[path.suffix], base64.b64encode(path.read_bytes()).decode()) for path in files]
        self.driver.execute_script(how, given)

    def answers(self, n_cards: int) -> list[str]:
        """The answers, when that many images have one."""
        self.wait(lambda: len(self.texts(".answers li[aria-busy=false] tbody th")) and self.settled(n_cards))
        return [text.split("  ")[0].rsplit(" ", 1)[0].strip() for text in self.texts(".answers h3")]

    def settled(self, n_cards: int) -> bool:
        return len(self.driver.find_elements("css selector", ".answers li[aria-busy=false]")) == n_cards

    def type_names(self, *names: str) -> None:
        box = self.find("#names")
        box.clear()
        box.send_keys("\n".join(names))

    def paste_names(self, *names: str) -> None:
        script = "const box = document.getElementById('names'); box.value = arguments[0]; box.dispatchEvent(new Event('input'));"
        self.driver.execute_script(script, "\n".join(names))

    def shown_classes(self) -> set[str]:
        return set(self.texts(".answers tbody th"))

    def check_log(self, *allowed: str) -> None:
        """No errors in the console but failed requests with these statuses, and no request to another server."""
        log = self.driver.get_log("browser")
        assert [one for one in log if not any(part in one["message"] for part in allowed)] == []
        fetched = self.driver.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
        assert [name for name in fetched if not name.startswith((f"{self.address}/", "blob:"))] == []


@pytest.fixture(scope="module")
def address(models: dict[str, ServedModel]) -> Iterator[str]:
    with served(create_app(models)) as url:
        yield url


@pytest.fixture
def discs(photos: Path) -> list[Path]:
    return sorted(photos.glob("*/0.png"))


def test_drop_answer_edit_answer(browser, address, discs):
    tab = Tab(browser, address).ready()
    names = tab.find("#names").get_attribute("value").split("\n")
    tab.give(discs[0])
    (answer,) = tab.answers(1)
    assert answer in names and tab.shown_classes() == set(names)
    assert tab.texts(".answers thead th") == ["class", "learned prompt", "zero-shot"]
    shares = [float(text.rstrip("\u00a0%")) for text in tab.texts(".bar:not(.zero-shot) span")]
    assert sum(shares) == pytest.approx(100, abs=0.3) and shares == sorted(shares, reverse=True)
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.bar:not(.zero-shot) i')].map((e) => parseFloat(getComputedStyle(e, '::before').width) / e.clientWidth)"
    )
    assert widths == pytest.approx([share / 100 for share in shares], abs=0.02)
    assert f"{discs[0].name}: {answer}" in tab.wait(lambda: tab.find("#status").text)

    tab.type_names("otter", HOSTILE, "red panda")  # the answer changes while typing
    tab.wait(lambda: tab.shown_classes() == {"otter", HOSTILE, "red panda"})
    assert tab.find("#reset").is_displayed()
    tab.give(discs[1], discs[2])
    tab.answers(3)
    tab.find("#reset").click()
    tab.wait(lambda: tab.shown_classes() == set(names))
    tab.find("#compare").click()
    tab.wait(lambda: tab.texts(".answers li:first-child thead th") == ["class", "learned prompt"])
    tab.check_log()


def test_paste_remove_and_none_of_these(browser, address, discs):
    tab = Tab(browser, address).ready()
    tab.give(discs[0], how=PASTE)
    tab.answers(1)
    browser.execute_script(
        "const c = document.getElementById('confidence'); c.value = 100; c.dispatchEvent(new Event('input'));"
    )
    tab.wait(lambda: tab.texts(".answers h3") == ["none of these "])
    assert tab.find(".answers .second").text.startswith("Best: ")
    tab.find(".answers button[aria-label='Remove 0.png']").click()
    assert tab.texts(".answers li") == []
    assert browser.switch_to.active_element.get_attribute("id") == "files"
    tab.check_log()


def test_models_can_be_chosen(browser, address, discs):
    tab = Tab(browser, address).ready()
    tab.give(discs[0])
    tab.answers(1)
    tab.find("#model option[value=gda]").click()
    tab.wait(lambda: tab.texts(".answers thead th") == ["class", "gda", "zero-shot"])
    assert "a gda classifier" in tab.find("#facts").text
    tab.type_names("otter", "badger")
    tab.wait(lambda: "cannot take new class names" in tab.find("#names-error").text)
    assert tab.find("#names").get_attribute("aria-invalid") == "true"
    tab.find("#reset").click()
    tab.wait(lambda: tab.find("#names").get_attribute("aria-invalid") is None and tab.settled(1))
    tab.find("#model option[value=zero-shot]").click()
    tab.wait(lambda: tab.texts(".answers thead th") == ["class", "zero-shot"])
    assert not tab.find("#compare").is_displayed()
    tab.check_log("422")


def test_wrong_files_have_their_own_messages(browser, only_prompt, discs, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "large.txt").write_bytes(b"x" * 60_000)
    with served(create_app(only_prompt, Limits(max_upload_mb=0.05))) as url:
        tab = Tab(browser, url).ready()
        tab.give(tmp_path / "notes.txt", discs[0], tmp_path / "large.txt")
        tab.wait(lambda: tab.settled(3))
        messages = tab.texts(".answers .wrong")
        assert "notes.txt is not an image" in messages[0] and messages[1] == "" and "at most 0.05 MB" in messages[2]
        assert tab.wait(lambda: tab.find("#status").text).endswith("2 images without an answer.")
        tab.type_names("a_b", "a b")
        tab.wait(lambda: "the same words" in tab.find("#names-error").text)
        tab.wait(lambda: len(tab.texts(".answers li.stale")) == 1)  # its answer belongs to other names
        tab.paste_names(*(f"class {number}" for number in range(201)))  # typing them takes seconds
        tab.wait(lambda: "from 2 to 200" in tab.find("#names-error").text)
        tab.check_log("415", "422")


def test_a_busy_service_is_asked_again(browser, only_prompt, discs):
    app = create_app(only_prompt, Limits(max_waiting=1))
    with served(app) as url:
        tab = Tab(browser, url).ready()
        app.state.service.decoder.n_images = 1  # as if another client's image were waiting
        tab.give(discs[0])
        tab.wait(lambda: tab.texts(".answers .wrong") == ["The service is busy; trying again …"])
        app.state.service.decoder.n_images = 0
        tab.answers(1)
        assert tab.texts(".answers .wrong") == [""]
        tab.check_log("429")


def test_a_service_that_is_gone(browser, only_prompt, discs):
    with served(create_app(only_prompt)) as url:
        tab = Tab(browser, url).ready()
        tab.give(discs[0])
        tab.answers(1)
    tab.give(discs[1])
    tab.wait(lambda: tab.find("#problem").is_displayed())
    assert "cannot be reached" in tab.find("#problem").text
    assert tab.texts(".answers .wrong")[0] == "The service cannot be reached."


def test_a_token_is_asked_for_and_kept(browser, only_prompt, discs):
    with served(create_app(only_prompt, token="the-right-token-123")) as url:
        tab = Tab(browser, url)
        tab.wait(lambda: tab.find("#token-dialog").is_displayed())
        tab.find("#token").send_keys("wrong", Keys.ENTER)
        tab.wait(lambda: tab.find("#token-text").text == "This token was not accepted.")
        tab.find("#token").send_keys("the-right-token-123", Keys.ENTER)
        tab.ready().give(discs[0])
        tab.answers(1)
        tab.check_log("401")
        browser.refresh()
        tab.ready()
        assert not tab.find("#token-dialog").is_displayed()
        tab.check_log()


def test_the_keyboard_alone(browser, address, discs):
    """Tab reaches every control in order, with a visible outline; names can be edited and images removed."""
    tab = Tab(browser, address).ready()
    tab.find("#files").send_keys(str(discs[0]))  # the dialog of the system is not part of the page
    tab.answers(1)
    browser.execute_script("document.activeElement.blur(); document.body.focus()")
    order = []
    for _ in range(12):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        active = browser.switch_to.active_element
        outline = browser.execute_script(
            "const e = document.activeElement; const one = (x) => parseFloat(getComputedStyle(x).outlineWidth);"
            "return Math.max(one(e), e.nextElementSibling ? one(e.nextElementSibling) : 0)"
        )
        assert outline >= 1, active.get_attribute("outerHTML")
        order.append(active.get_attribute("id") or active.get_attribute("aria-label") or active.text)
        if order[-1] == "names":
            active.send_keys(Keys.CONTROL, "a")
            active.send_keys("otter\nbadger")
            tab.wait(lambda: tab.shown_classes() == {"otter", "badger"})
        if order[-1] == "clear":
            break
    assert order == [
        "Skip to the answers",
        "files",
        "photo",
        "model",
        "names",
        "reset",
        "confidence",
        "compare",
        "Remove 0.png",
        "clear",
    ]
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert tab.texts(".answers li") == [] and tab.find("#status").text == "All images were removed."
    tab.check_log()


def test_the_page_fits_its_width(browser, address, discs):
    tab = Tab(browser, address).ready()
    tab.paste_names("x" * 120, HOSTILE, *(f"class_{number}" for number in range(10)))
    tab.give(*discs)
    tab.answers(3)
    tab.find(".answers button[aria-expanded]").click()
    assert len(tab.texts(".answers li:first-child tbody tr")) == 12
    script = """return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.skip, .hidden-label, dialog, thead')
        && e.getBoundingClientRect().right > arguments[0] + 1).map((e) => e.outerHTML.slice(0, 80))"""
    for width in (320, 390, 800, 1280):
        tab.set_width(width)
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(script, width) == []
    tab.check_log()
