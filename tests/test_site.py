"""The site: its pictures are drawn anew alike, its buttons copy, and the script that checks pages sees their faults."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Browser, browser, needs_browser
from support.scripts import ROOT, script

PAGE = "<!doctype html><html lang=en><meta charset=utf-8><body style='background:#fff;color:#000'>%s</body></html>"
CODE = "<div class='highlight-python'><div class=highlight><pre>%s</pre></div></div>"


@pytest.mark.no_cover
def test_the_pictures_are_those_that_the_script_draws() -> None:
    maker = script("docs/pictures.py")
    for name, picture in maker.pictures().items():
        stored = (maker.FIGURES / f"{name}.svg").read_text("utf-8")
        assert stored == picture, "python docs/pictures.py draws them anew"


def test_each_step_has_a_box_and_a_picture() -> None:
    for page in sorted((ROOT / "docs/steps").glob("*.md")):
        text = page.read_text("utf-8")
        assert f"](../figures/step-{page.stem[:2]}-" in text, page.name
        assert all(f"- **{word}:**" in text for word in ("Predict", "Measure", "Explain")), page.name


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@needs_browser
def test_code_has_a_button_that_copies_it(chromium: Browser, tmp_path: Path) -> None:
    for name in ("pages.js", "pages.css"):
        shutil.copy(ROOT / "docs/static" / name, tmp_path)
    printed = "<div class='highlight-text'><div class=highlight><pre>1</pre></div></div>"
    head = "<link rel=stylesheet href=pages.css>"
    code = CODE % "print(1)\nprint(2)\n"
    (tmp_path / "page.html").write_text(PAGE % f"{head}{code}{printed}<script src=pages.js></script>", "utf-8")
    chromium.open(tmp_path / "page.html")
    assert chromium.run("document.querySelectorAll('button.copy').length") == 1, "what is printed is not copied"
    chromium.run(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async t => { window.copied = t }}})"
    )
    chromium.click("button.copy")
    assert chromium.wait("window.copied") == "print(1)\nprint(2)\n"
    assert chromium.wait("document.querySelector('button.copy').textContent") == "Copied"


@needs_browser
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<p>fine <a href='#'>link</a></p>", ""),
        ("<p style='width:600px'>wide</p>", "sticks out: P"),
        ("<div style='overflow-x:auto'><p style='width:600px'>wide</p></div>", ""),
        ("<p style='color:#888'>grey</p>", "contrast: grey 3.54"),
        ("<h1 style='color:#888;font-size:30px'>grey and large</h1>", ""),
        ("<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>", "no alternative text"),
        (CODE % ("x" * 300), "code is cut: xxxx"),
        ("<table class=docutils><tr><td>100 images<td>a longer text, which may wrap</table>", ""),
        (
            "<table class=docutils><tr><td style='width:1em;overflow-wrap:anywhere'>1000<td>%s</table>" % ("a " * 400),
            "a word of a table is broken: 1000",
        ),
        ("<script>unknown()</script>", "ReferenceError"),
    ],
)
def test_faults_of_a_page_are_seen(chromium: Browser, tmp_path: Path, body: str, fault: str) -> None:
    checker = script(".ci/check_site.py")
    path = tmp_path / "page.html"
    path.write_text(PAGE % f"<style>pre{{overflow-x:auto}}</style>{body}", "utf-8")
    found = checker.faults(chromium, path)
    assert bool(found) == bool(fault), found
    assert all(fault in one for one in found)


@needs_browser
def test_a_page_weighs_what_it_loads(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("p{}" * 100, "utf-8")
    path = tmp_path / "page.html"
    path.write_text(PAGE % "<link rel=stylesheet href=style.css>", "utf-8")
    assert script(".ci/check_site.py").weight(chromium, path) == path.stat().st_size + 300


@needs_browser
def test_a_search_that_leads_astray_is_seen(chromium: Browser, tmp_path: Path) -> None:
    body = "<ul class=search><li><a href='{}'>a page</a></li></ul>"
    none = "<p class=search-summary>Your search did not match</p>"
    checker, sought = script(".ci/check_site.py"), {"my own images": "data.html#own"}
    for results, fault in (
        (body.format("data.html#own"), []),
        (body.format("images.html"), ["search: my own images: images.html comes first, not data.html#own"]),
        (none, ["search: my own images: nothing comes first, not data.html#own"]),
    ):
        (tmp_path / "search.html").write_text(PAGE % results, "utf-8")
        assert checker.astray(chromium, tmp_path, sought) == fault


def test_a_file_that_a_page_writes_is_written_anew_when_it_must_be(tmp_path: Path) -> None:
    settings = script("docs/written.py")
    source, file = tmp_path / "page.md", tmp_path / "file.html"
    source.write_text("```python\n```\n", "utf-8")
    assert not settings.is_current(file, [source])
    file.write_text("drawn", "utf-8")
    os.utime(source, (1, 1))
    assert settings.is_current(file, [source])
    os.utime(file, (0, 0))
    assert not settings.is_current(file, [source])
