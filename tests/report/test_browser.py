"""The pages in Chromium, if it is installed: sorting, filtering, links to runs, no overflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from slimprompt.classifier import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.report.fit_page import write_fit_page
from slimprompt.report.page import Report, write_report
from slimprompt.training.recipe import Recipe
from tests.report.test_fit_page import compare

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed (pip install 'slimprompt[dev]')"
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(study_report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(study_report, tmp_path_factory.mktemp("report")).as_uri()


def light(report: Report) -> Report:
    """The report without figures and with one of its tables; the others take most of the browser's time."""
    return replace(report, figures=(), tables=report.tables[:1])


@pytest.fixture(scope="module")
def light_page(study_report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(light(study_report), tmp_path_factory.mktemp("light")).as_uri()


@pytest.fixture(scope="module")
def fit_page(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page about an inaccurate prompt for classes with special characters in their names."""
    names = ["x" * 120, "<b>bold</b> & 'quoted'", "plain"]
    images = [Image.new("RGB", (32, 32), colour) for colour in ("red", "green", "blue")]
    classifier = Classifier(tiny, recipe=Recipe(epochs=1, views=0), n_ctx=4, rank=2, cache=False).fit(images, names)
    found = compare(classifier, images, [0, 1, 2], [1, 2, 0], classifier.head_.weights)
    path = tmp_path_factory.mktemp("fit") / "fit.html"
    return write_fit_page(path, classifier, found, templates=["{}"]).as_uri()


def set_width(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def opened(browser: webdriver.Chrome, page: str) -> webdriver.Chrome:
    set_width(browser, 1280)
    if "#" in page:
        browser.get("about:blank")  # forces a reload even if only the anchor differs
    browser.get(page)
    return browser


def column(browser: webdriver.Chrome, table: str, index: int) -> list[str]:
    script = "return [...document.getElementById(arguments[0]).tBodies[0].rows].map(r => r.cells[arguments[1]].textContent.trim())"
    return browser.execute_script(script, table, index)


@pytest.mark.parametrize("name", ["page", "fit_page"])
def test_no_errors_no_requests_and_no_overflow(browser: webdriver.Chrome, name: str, request: pytest.FixtureRequest):
    browser.get("data:text/html,<script>throw Error('logged')</script>")
    assert "logged" in str(browser.get_log("browser"))  # errors appear in the log
    opened(browser, request.getfixturevalue(name))
    assert browser.get_log("browser") == []
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []

    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    script = """return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .plot, .skip, dialog, .hidden-label')
        && e.getBoundingClientRect().right > arguments[0] + 1).map(e => e.outerHTML.slice(0, 80))"""
    for width in (1280, 390, 360):
        set_width(browser, width)
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(script, width) == []


def test_the_summary_fits_a_phone(browser: webdriver.Chrome, light_page: str):
    opened(browser, light_page)
    set_width(browser, 390)
    script = "return [...document.querySelectorAll('#table-summary td, #table-summary th')].map(c => c.getBoundingClientRect().right)"
    ends = browser.execute_script(script)
    assert len(ends) > 20 and max(ends) <= 390
    assert not browser.execute_script("return document.querySelector('#table-summary').closest('.wide')")


def test_what_is_wider_than_a_phone_says_so(browser: webdriver.Chrome, light_page: str):
    """A fading edge and a line of text, which go where nothing more follows."""
    opened(browser, light_page)
    boxes = """return [...document.querySelectorAll('.scroll')].filter(b => b.offsetParent).map(b =>
        [b.scrollWidth > b.clientWidth + 1, b.classList.contains('wide'), getComputedStyle(b, '::after').content])"""
    set_width(browser, 390)
    wait_for_frame(browser)
    found = browser.execute_script(boxes)
    assert any(wide for wide, _, _ in found)
    assert all(wide == marked == ("sideways" in hint) for wide, marked, hint in found)
    edge = """const box = document.querySelector('#table-runs').closest('.scroll'); box.scrollLeft = arguments[0];
        return box.classList.contains('more')"""
    assert browser.execute_script(edge, 0)
    browser.execute_script(edge, 100_000)
    wait_for_frame(browser)
    assert not browser.execute_script(edge, 100_000)


def wait_for_frame(browser: webdriver.Chrome) -> None:
    """Until the browser has laid out the page and told its observers."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def test_options_of_the_command_line_do_not_break(browser: webdriver.Chrome, study_report: Report, tmp_path: Path):
    text = "run `slimprompt study --where class_subset=base --compare-published --overwrite` " * 3
    opened(browser, write_report(replace(light(study_report), limitations=[text]), tmp_path).as_uri())
    for width in (390, 520, 800):
        set_width(browser, width)
        heights = "return [...document.querySelectorAll('.option')].map(o => o.getClientRects().length)"
        assert set(browser.execute_script(heights)) == {1}


def test_clicking_a_column_title_sorts_the_rows(browser: webdriver.Chrome, light_page: str):
    opened(browser, light_page)
    header = browser.find_element("css selector", "#table-runs thead tr:last-child th:nth-child(8)")
    before = column(browser, "table-runs", 7)
    header.find_element("tag name", "button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    rising = column(browser, "table-runs", 7)
    numbers = [float(text) for text in rising if text != "—"]
    assert numbers == sorted(numbers) and len(numbers) > 20
    assert set(rising[len(numbers) :]) == {"—"}  # missing values come last
    header.find_element("tag name", "button").click()
    assert header.get_attribute("aria-sort") == "descending"
    falling = column(browser, "table-runs", 7)
    assert [float(text) for text in falling[: len(numbers)]] == numbers[::-1] and set(falling[len(numbers) :]) == {"—"}
    other = browser.find_element("css selector", "#table-runs thead tr:last-child th:nth-child(3)")
    other.find_element("tag name", "button").click()
    assert header.get_attribute("aria-sort") is None and other.get_attribute("aria-sort") == "ascending"
    for _ in range(2):
        other.find_element("tag name", "button").click()
    assert other.get_attribute("aria-sort") is None
    assert column(browser, "table-runs", 7) == before


def test_sorting_works_from_the_keyboard(browser: webdriver.Chrome, light_page: str):
    opened(browser, light_page)
    button = browser.find_element("css selector", "#table-summary thead tr:last-child th:last-child button")
    button.send_keys("\ue007")  # enter
    script = "return [...document.getElementById('table-summary').tBodies[0].rows].map(r => Number(r.cells[r.cells.length - 1].dataset.v))"
    values = browser.execute_script(script)
    assert values == sorted(values) and len(set(values)) > 2


def test_the_filter_hides_rows_and_shows_a_count(browser: webdriver.Chrome, light_page: str):
    opened(browser, light_page)
    tools = browser.find_element("css selector", ".tools[data-for=table-runs]")
    tools.find_element("tag name", "input").send_keys("food101 BASE dense")
    script = "return [...document.getElementById('table-runs').tBodies[0].rows].filter(r => !r.hidden).map(r => r.textContent)"
    shown = browser.execute_script(script)
    assert shown and all("Food101" in row and "base" in row and "dense" in row for row in shown)
    total = browser.execute_script("return document.getElementById('table-runs').tBodies[0].rows.length")
    assert tools.find_element("tag name", "output").text == f"{len(shown)} of {total} shown"
    tools.find_element("tag name", "input").clear()
    tools.find_element("tag name", "input").send_keys(" ")
    assert len(browser.execute_script(script)) == total and tools.find_element("tag name", "output").text == ""


def test_claims_are_filtered_by_verdict(browser: webdriver.Chrome, light_page: str):
    opened(browser, light_page)
    script = """const select = document.querySelector('.tools[data-for=claim-list] select');
        select.value = 'holds'; select.dispatchEvent(new Event('input'));
        return [...document.getElementById('claim-list').children].map(c => [c.hidden, c.dataset.kind])"""
    claims = browser.execute_script(script)
    assert all(hidden == ("holds" not in kind.split("|")) for hidden, kind in claims)
    assert len({hidden for hidden, _ in claims}) == 2


def test_clicking_a_number_lists_its_runs(browser: webdriver.Chrome, light_page: str):
    opened(browser, light_page)
    link = browser.find_element("css selector", "#table-summary a.n")
    numbers = str(link.get_attribute("data-runs")).split()
    link.click()
    dialog = browser.find_element("id", "runs-dialog")
    assert dialog.is_displayed()
    titles = [entry.text for entry in dialog.find_elements("css selector", "li a")]
    assert len(titles) == len(numbers) > 1
    wanted = browser.execute_script("return document.getElementById('run-' + arguments[0]).dataset.title", numbers[0])
    assert titles[0] == wanted
    dialog.find_element("css selector", "li a").click()
    assert not dialog.is_displayed()
    assert browser.current_url.endswith(f"#run-{numbers[0]}")
    top = browser.execute_script(
        "return document.getElementById('run-' + arguments[0]).getBoundingClientRect().top", numbers[0]
    )
    assert 0 <= top < 900


def test_the_runs_of_a_number_on_a_page_without_a_table_of_runs(
    browser: webdriver.Chrome, study_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("slimprompt.report.runs.MAX_LISTED", 10)
    opened(browser, write_report(light(study_report), tmp_path).as_uri())
    link = browser.find_element("css selector", "#table-summary a.n")
    link.click()
    entries = [one.text for one in browser.find_elements("css selector", "#runs-dialog li")]
    assert entries == [f"run {number} of runs.csv" for number in str(link.get_attribute("data-runs")).split()]
    assert browser.get_log("browser") == []


def test_print_shows_the_first_runs_only(
    browser: webdriver.Chrome, study_report: Report, light_page: str, tmp_path: Path
):
    assert len(study_report.records) < 200
    many = replace(light(study_report), records=[*study_report.records, *study_report.records][:201])
    shown = (
        "return [...document.querySelectorAll('#table-runs tbody tr')].filter(r => r.getClientRects().length).length"
    )
    note = "return document.querySelectorAll('.printed').length && getComputedStyle(document.querySelector('.printed')).display"
    opened(browser, write_report(many, tmp_path).as_uri())
    assert (browser.execute_script(shown), browser.execute_script(note)) == (201, "none")
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert (browser.execute_script(shown), browser.execute_script(note)) == (200, "block")
        opened(browser, light_page)
        assert browser.execute_script(note) == 0  # few runs are all printed
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_printing_unfolds_the_tables(browser: webdriver.Chrome, page: str):
    opened(browser, page)
    count = "return document.querySelectorAll('section > details[open]').length"
    assert browser.execute_script(count) == 0
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    every = browser.execute_script("return document.querySelectorAll('section > details').length")
    assert browser.execute_script(count) == every > 3
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(count) == 0


def test_a_link_into_a_folded_section_unfolds_it(browser: webdriver.Chrome, page: str):
    opened(browser, f"{page}#table-rank_sweep")
    assert browser.find_element("id", "table-rank_sweep").is_displayed()
