"""`lms report` on made-up records of all studies, opened in a real browser: narrow and wide, light
and dark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
import report_records

pytestmark = pytest.mark.pinned

ROOT = Path(__file__).resolve().parents[2]
PAGES = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
WIDTHS = [360, 640, 820, 1280]  # one for each way that charts are shown
# Read here: tests do not see variables of this name.
GIVEN = os.environ.get("LMS_TOOL")


def program() -> Path | None:
    """The built tool: LMS_TOOL, else that of the development build, else one in PATH."""
    found = GIVEN or shutil.which("lms", path=f"{ROOT / 'build/tools/lms'}:{os.environ['PATH']}")
    return Path(found) if found else None


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    tool = program()
    assert tool is not None, "the tool lms is not built (it needs CLI11)"
    command = [str(tool), "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report_records.write_all(folder / "runs")
    report_records.write_steps(folder / "steps")
    (folder / "runs" / "broken.json").write_text('{"schema": "lms-bench/1"')
    path = folder / "report.html"
    done = report(folder / "runs", folder / "steps", "-o", path, "--svg", folder / "svg")
    assert done.returncode == 0, done.stderr
    assert "broken.json: this is no JSON" in done.stderr
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    found = browser.find()
    if found is None:
        pytest.skip("there is no Chromium (Debian: chromium; or name one in LMS_CHROMIUM)")
    with browser.Browser(found, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def wider_than_the_page(chromium: browser.Browser) -> list[str]:
    """Elements that stick out, but for what scrolls in a box of its own."""
    return chromium.ask(
        """Array.from(document.querySelectorAll(
             'body *:not(svg *):not(.scroll *):not(nav *):not(#tip)')).filter(e => {
             const box = e.getBoundingClientRect();
             return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
           }).map(e => e.tagName + '.' + e.className)"""
    )


@pytest.mark.parametrize(("width", "scheme"), PAGES)
def test_nothing_sticks_out_and_nothing_complains(
    page: Path, chromium: browser.Browser, width: int, scheme: str
) -> None:
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.show(width, 900, scheme)
    chromium.open(page.as_uri())
    for opened in ("false", "true"):
        chromium.ask(f"document.querySelectorAll('details').forEach(d => d.open = {opened})")
        assert chromium.ask("document.documentElement.scrollWidth") <= width
        assert wider_than_the_page(chromium) == []
    assert chromium.complaints == []
    # The icon is an empty one inside the page.
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_seen_once_and_its_words_do_not_overlap(
    page: Path, chromium: browser.Browser, width: int
) -> None:
    chromium.show(width, 900, "light")
    chromium.open(page.as_uri())
    chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    seen = chromium.ask(
        """Array.from(document.querySelectorAll('figure')).map(f => Array.from(
             f.querySelectorAll(':scope > svg')).filter(s => s.getBoundingClientRect().width > 0)
             .length)"""
    )
    assert len(seen) > 60
    assert set(seen) == {1}
    overlapping = chromium.ask(
        """(() => {
             const found = [];
             for (const svg of document.querySelectorAll('figure > svg')) {
               if (!svg.getBoundingClientRect().width) continue;
               const texts = Array.from(svg.querySelectorAll('text'));
               const boxes = texts.map(t => t.getBoundingClientRect());
               boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
                 // A box is a line's height; letters take less of it.
                 if (a.width && a.left < b.right - 1 && b.left < a.right - 1 &&
                     a.top < b.bottom - a.height / 3 && b.top < a.bottom - a.height / 3)
                   found.push(texts[i].textContent + ' | ' + texts[j].textContent);
               }));
             }
             return found;
           })()"""
    )
    assert overlapping == []


@pytest.mark.parametrize("width", [360, 1280])
def test_goals_stand_on_top_and_lead_to_charts(
    page: Path, chromium: browser.Browser, width: int
) -> None:
    chromium.show(width, 900, "light")
    chromium.open(page.as_uri())
    assert chromium.ask("document.querySelector('main h2').textContent") == "Goals"
    rows = chromium.ask(
        """Array.from(document.querySelectorAll('.goals tbody tr')).map(
             row => Array.from(row.querySelectorAll('td')).map(cell => cell.innerText))"""
    )
    assert len(rows) == 11
    assert all(len(row) == 5 and all(row) for row in rows)
    ends = [row[3] for row in rows]
    assert sum("the physical end of swapping" in end for end in ends) == 1
    seen = chromium.ask(
        """Array.from(document.querySelectorAll('.goals td a')).map(link => {
             const to = document.querySelector(link.getAttribute('href'));
             return [to.tagName, to.getBoundingClientRect().height > 100];
           })"""
    )
    assert len(seen) == len(rows)
    assert all(each == ["FIGURE", True] for each in seen)


def test_words_are_large_enough_on_a_phone(page: Path, chromium: browser.Browser) -> None:
    chromium.show(360, 900, "light")
    chromium.open(page.as_uri())
    smallest = chromium.ask(
        """Math.min(...Array.from(document.querySelectorAll('figure > svg')).filter(
             s => s.getBoundingClientRect().width > 0).map(
             s => s.getBoundingClientRect().width / s.viewBox.baseVal.width))"""
    )
    assert smallest >= 0.95  # of 11 pixels


def colours(chromium: browser.Browser) -> list[str]:
    return chromium.ask(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )


def test_light_and_dark_by_preference_and_by_button(page: Path, chromium: browser.Browser) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        chromium.show(1280, 900, scheme)
        chromium.open(page.as_uri())
        chromium.ask("localStorage.clear(), delete document.documentElement.dataset.theme")
        seen[scheme] = colours(chromium)
    assert seen["light"] != seen["dark"]
    chromium.ask("document.querySelector('.theme').click()")
    assert colours(chromium) == seen["light"]
    chromium.open(page.as_uri())  # it is remembered
    assert colours(chromium) == seen["light"]
    chromium.ask("localStorage.clear()")


def test_pointing_at_a_point_reads_it_out(page: Path, chromium: browser.Browser) -> None:
    chromium.show(1280, 900, "light")
    chromium.open(page.as_uri())
    x, y = chromium.ask(
        """(() => {
             const mark = document.querySelector('#B3, #b3').querySelector(
               'figure svg.wide circle[data-tip*="at 1500"]');
             mark.scrollIntoView({block: 'center'});
             const box = mark.getBoundingClientRect();
             return [box.x + box.width / 2, box.y + box.height / 2];
           })()"""
    )
    # Scrolling ends what was read out, and is told of with the next frame.
    chromium.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert chromium.ask("document.querySelector('#tip').hidden") is False
    assert " at 1500²" in chromium.ask("document.querySelector('#tip').textContent")


def test_it_is_complete_without_script(page: Path, chromium: browser.Browser) -> None:
    def words() -> list[str]:
        # What is asked here runs all the same: only the page's own script does not.
        return chromium.ask(
            "Array.from(document.querySelectorAll('main h2, main h4, main text, main td'))"
            ".map(e => e.textContent)"
        )

    chromium.show(1280, 900, "light", script=False)
    chromium.open(page.as_uri())
    assert chromium.ask("document.querySelector('.theme').hidden") is True
    assert chromium.ask("document.querySelectorAll('svg title').length") > 100
    without = words()
    chromium.show(1280, 900, "light")
    chromium.open(page.as_uri())
    assert chromium.ask("document.querySelector('.theme').hidden") is False
    assert without == words()
    assert len(without) > 1000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_documents_of_their_own(
    page: Path, chromium: browser.Browser, scheme: str
) -> None:
    pictures = sorted((page.parent / "svg").glob("*.svg"))
    assert len(pictures) > 60
    chromium.complaints.clear()
    fills = set()
    for picture in pictures[::20]:
        chromium.show(900, 900, scheme)
        chromium.open(picture.as_uri())
        assert chromium.ask("document.documentElement.tagName") == "svg"
        fills.add(chromium.ask("getComputedStyle(document.querySelector('.f-card')).fill"))
    assert chromium.complaints == []
    assert fills == {"rgb(255, 255, 255)" if scheme == "light" else "rgb(23, 27, 34)"}


def test_hostile_records_and_file_names_stay_text(
    tmp_path: Path, chromium: browser.Browser
) -> None:
    evil = "\"'><img src=x onerror=alert(1)></script></style><svg onload=alert(2)>\u202e"
    maker = report_records.Maker(tmp_path / "runs", "B3", evil, "MP", 2, 15 * 2**30)
    gaps = [{"at": 0.1, "for": 0.1, "before": evil}]
    more = {"weights": evil, "commit": evil, "date": evil, "machine": dict.fromkeys(("gpu",), evil)}
    maker.run("resolution", "plain", 1, 3000, 80, **more)
    maker.run("resolution", "lms", 1, 6000, 70, timeline={"step": 1, "gaps": gaps}, **more)
    maker.run("resolution", "lms", 1, 9000, 70, "oom", message=evil, **more)
    own = {"schema": "lms-bench/1", "study": evil, "series": evil, "method": evil, "outcome": evil}
    (tmp_path / "runs" / "own.json").write_text(json.dumps(own))
    (tmp_path / "runs" / "<img src=x onerror=alert(3)>.json").write_text("{")
    path = tmp_path / "report.html"
    done = report(tmp_path / "runs", "-o", path, "--title", evil)
    assert done.returncode == 0, done.stderr
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.show(1280, 900, "light")
    chromium.open(path.as_uri())
    # One script, which is the page's own, and not a single attribute that runs anything.
    assert chromium.ask("[document.images.length, document.scripts.length]") == [0, 1]
    running = "e => Array.from(e.attributes).some(a => a.name.startsWith('on'))"
    assert chromium.ask(f"Array.from(document.querySelectorAll('*')).some({running})") is False
    assert "onerror=alert(3)" in chromium.ask("document.querySelector('#not-shown').textContent")
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:"))] == []


def test_pngs_are_drawn(tmp_path: Path, chromium: browser.Browser) -> None:
    maker = report_records.Maker(tmp_path / "runs", "B3", "resnet50", "MP", 2, 15 * 2**30)
    maker.run("resolution", "plain", 1, 3000, 80)
    done = report(tmp_path / "runs", "-o", tmp_path / "report.html", "--png", tmp_path / "png")
    assert done.returncode == 0, done.stderr
    pictures = list((tmp_path / "png").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.suffix == ".png"
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_report_on(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    done = report(tmp_path / "list.json", "-o", tmp_path / "report.html")
    assert done.returncode == 2
    assert "this is no record: it is a JSON array" in done.stderr
    assert "no record to report on" in done.stderr
    assert not (tmp_path / "report.html").exists()
