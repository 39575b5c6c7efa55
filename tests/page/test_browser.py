"""The page in a real browser: what it draws is what was recorded, and it can be used without a mouse."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import HOSTILE, SIZES, chromium, page_file, program, very_many, watched

from onlooker import Program

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = chromium()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="this machine has no chromium")

#: the ratio of luminances that WCAG 2.2 asks of text (1.4.3)
CONTRAST = 4.5
#: the numbers of calls that marks stand for, and the places of elements, as scripts for the browser
CALLS = "all => all.map(one => +one.dataset.calls)"
BOXES = "all => all.map(one => one.getBoundingClientRect()).map(r => [r.x, r.y, r.width, r.height])"


class Opened:
    """A page, with all that the browser asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        self.page.wait_for_function("[...document.querySelectorAll('.entry')].every(one => one.querySelector('table'))")

    def figure(self, title: str) -> Any:
        return self.page.get_by_role("img", name=re.compile("^" + re.escape(title)))

    def marks(self, selector: str, attribute: str) -> list[int]:
        found = self.page.locator(selector).evaluate_all(f"all => all.map(one => +one.getAttribute('{attribute}'))")
        return [int(number) for number in found]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def proven() -> Program:
    return program()


@pytest.fixture(scope="module")
def file(proven: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_file(tmp_path_factory.mktemp("program"), proven, "branches")


def test_the_file_is_all_that_is_loaded_and_nothing_complains(browser: Any, file: Path, tmp_path: Path) -> None:
    for path in (file, page_file(tmp_path, watched(tmp_path / "seen"), HOSTILE)):
        opened = Opened(browser, path)
        assert opened.requests == [path.as_uri()]
        assert opened.complaints == []
        assert opened.page.locator("body img").count() == 0
    assert opened.page.title() == f"{HOSTILE}: onlooker", "a text is only a text"


def test_the_marks_are_the_calls_and_the_trials(browser: Any, file: Path, proven: Program) -> None:
    opened = Opened(browser, file)
    for name in ("batch", "x_dim_1", "2*x_dim_1"):
        paths = opened.figure(f"{name} over the calls").locator("path[data-calls]")
        counts = paths.evaluate_all("all => all.map(one => [+one.dataset.calls, one.getAttribute('d')])")
        assert sorted(count for count, _ in counts) == [3, 4], "a path for each graph"
        assert all(d.count("M") == count for count, d in counts), "a mark for each call"
    assert opened.marks("#overview rect[data-calls]", "data-calls") == [len(SIZES)], "a bar for each entry point"
    joint = opened.figure("x_dim_1 beside batch")
    assert sum(joint.locator("rect[data-calls]").evaluate_all("all => all.map(one => +one.dataset.calls)")) == len(
        SIZES
    )
    assert joint.locator("rect.box").count() == len(proven.graphs)
    tried = opened.figure("Sizes that were tried")
    grid = sum(tried.locator("[data-trials]").evaluate_all("all => all.map(one => +one.dataset.trials)"))
    sized = [check for check in proven.tally.checks if len(check.sizes) == 2]
    assert grid == len(sized)
    assert tried.locator("rect.fail").count() == 0
    sides = (
        opened.page.locator(".guard").first.locator("rect").evaluate_all("all => all.map(one => +one.dataset.calls)")
    )
    assert sides == [4, 3]


def test_the_mark_of_a_call_stands_at_its_size(browser: Any, file: Path) -> None:
    """Sizes that grow stand higher, and the line of a relation passes through its marks."""
    opened = Opened(browser, file)
    paths = opened.figure("x_dim_1 over the calls").locator("path[data-calls]")
    found = " ".join(paths.evaluate_all("all => all.map(one => one.getAttribute('d'))"))
    places = sorted((float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", found))
    heights = [-y for _, y in places]
    widths = sorted(width for _, width in SIZES)
    assert [sorted(heights).index(height) for height in sorted(heights)] == [widths.index(width) for width in widths]
    assert len({x for x, _ in places}) == len(SIZES)


def test_all_of_it_is_reached_and_used_with_the_keyboard(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    page, reached = opened.page, []
    for _ in range(130):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName.toLowerCase()"))
    n_svg = page.locator("svg[tabindex='0']").count()
    assert reached[0] == "a", "the link that skips the navigation"
    assert reached.count("svg") >= n_svg > 6
    assert {"summary", "input", "button", "div"} <= set(reached)
    picture = opened.figure("x_dim_1 over the calls")
    picture.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    said = picture.locator("xpath=..").locator("[aria-live]").text_content()
    assert said == "call 6: x_dim_1 26, 1 call, main_2"
    page.get_by_role("button", name="x_dim_1", exact=True).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    heading = page.get_by_role("columnheader", name="x_dim_1", exact=True)
    assert heading.get_attribute("aria-sort") == "descending"
    first = page.get_by_role("region", name="Different calls").locator("tbody tr").first
    assert first.locator("td").nth(4).text_content() == str(max(width for _, width in SIZES))


def test_a_table_is_searched(browser: Any, file: Path, proven: Program) -> None:
    opened = Opened(browser, file)
    section = opened.page.get_by_role("region", name="Trials").locator("xpath=..")
    assert section.locator(".count").text_content() == f"{proven.tally.total} rows"
    opened.page.get_by_label("Search trials").fill("observed exact")
    wanted = [check for check in proven.tally.checks if check.kind == "observed" and check.focus == "observed"]
    assert section.locator("tbody tr").count() == len(wanted)
    opened.page.get_by_label("Search trials").fill("no such trial")
    assert section.locator(".count").text_content() == "0 rows"


def test_every_picture_and_field_has_a_name(browser: Any, file: Path) -> None:
    page = Opened(browser, file).page
    n_pictures = page.locator("svg[role=img]").count()
    assert n_pictures == page.get_by_role("img", name=re.compile(r"\w")).count() > 8
    n_fields = page.locator("input").count()
    assert n_fields == page.get_by_role("searchbox", name=re.compile("Search .+")).count() > 2
    ids = page.locator("[id]").evaluate_all("all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(one => +one.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


LUMINANCE = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (text) => rgb(text).map(one => one / 255)
    .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$/.test(color) && color !== 'transparent') return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const unseen = ['script', 'title', 'desc', 'noscript'];
  const texts = [...document.querySelectorAll('body *')].filter(one => !unseen.includes(one.tagName.toLowerCase())
    && [...one.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()));
  return texts.map(one => {
    const style = getComputedStyle(one);
    const ink = light(one.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const paper = light(behind(one));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  });
}"""


def test_light_dark_and_print_can_be_read_and_have_one_layout(browser: Any, file: Path) -> None:
    papers, layouts = set(), []
    for scheme, media in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        page = Opened(browser, file, color_scheme=scheme).page
        page.emulate_media(media=media, color_scheme=scheme)
        contrasts = page.evaluate(LUMINANCE)
        assert len(contrasts) > 100
        assert min(contrasts) >= CONTRAST, (scheme, media)
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        if media == "screen":
            layouts.append(page.locator("figure, table, h2, h3").evaluate_all(BOXES))
    assert len(papers) == 3
    assert layouts[0] == layouts[1]
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = false; })")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".entry:not([open])").count() == 0, "what is printed is open"


def test_a_screenshot_has_the_colour_of_each_graph_where_its_marks_are(browser: Any, file: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    opened = Opened(browser, file)
    picture = opened.figure("x_dim_1 over the calls")
    shot = image.open(io.BytesIO(picture.screenshot())).convert("RGB")
    paths = picture.locator("path[data-calls]").evaluate_all(
        "all => all.map(one => [one.getAttribute('d'), getComputedStyle(one).stroke])"
    )
    assert len({stroke for _, stroke in paths}) == 2
    for d, stroke in paths:
        wanted = tuple(map(int, re.findall(r"\d+", stroke)[:3]))
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", d):
            near = [
                shot.getpixel((round(float(x)) + dx, round(float(y)) + dy)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)
            ]
            assert min(max(abs(a - b) for a, b in zip(pixel, wanted, strict=True)) for pixel in near) < 40


def test_very_many_calls_are_few_elements(browser: Any, tmp_path: Path) -> None:
    """Whatever the number of calls, what a browser lays out is bounded: about a second on a slow machine."""
    opened = Opened(browser, page_file(tmp_path, very_many(tmp_path / "seen"), "many"))
    assert opened.complaints == []
    for name in ("batch", "input_dim_1"):
        marks = opened.marks(f"figure:has(strong:text-is('{name} over the calls')) path[data-calls]", "data-calls")
        assert sum(marks) == 100_000
    assert opened.page.locator("*").count() < 6000
    drawn = opened.page.locator("path").evaluate_all("all => all.map(one => (one.getAttribute('d') || '').length)")
    assert sum(drawn) < 2_000_000
