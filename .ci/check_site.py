"""Check the built documentation as readers see it, in a headless Chromium.

    python .ci/check_site.py docs/_build

Every page, at 400 pixels in light and at 1280 in dark, at night at both in both: nothing sticks out of the screen but
in boxes that scroll, each text has a contrast of at least 4.5 (large ones 3), each image an alternative text, no script
fails. At 1280 pixels no block of code is cut, at 400 no word of a table is broken. The first page takes less than 300
kB with all that it loads, and the search finds the right page first.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import BROWSER, CONTRAST, NO_ALTERNATIVE, OVERFLOW, Browser, browser  # noqa: E402  # not installed
from support.campaign import NIGHT  # noqa: E402  # likewise

WIDTHS = (400, 1280)
SHOWN = [(w, dark) for dark in (False, True) for w in WIDTHS] if NIGHT else [(400, False), (1280, True)]
MOST_BYTES = 300_000
SKIPPED = ("_static", "_sources", "_downloads", "_modules", "source", "train")  # not ours; code; what needs a server
DRAWN = "new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
CUT = """[...document.querySelectorAll('div.highlight pre')].filter(e => e.scrollWidth > e.clientWidth + 1)
.map(e => e.textContent.split('\\n').sort((a, b) => b.length - a.length)[0].slice(0, 60))"""
# Numbers and short words of tables that are broken, and longer ones in more than two parts; names in code may be.
BROKEN = """[...document.querySelectorAll('table.docutils :is(td, th):not(:has(code))')].flatMap(cell => {
const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange(), broken = [];
while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[\\p{L}\\d]+(?:[.,]\\d+)*/gu)) {
range.setStart(texts.currentNode, word.index); range.setEnd(texts.currentNode, word.index + word[0].length);
const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
if (lines > (/\\d|^.{1,4}$/.test(word[0]) ? 1 : 2)) broken.push(word[0]) }
return broken }).slice(0, 5)"""
SOUGHT = {
    "install": "getting-started.html", "my own images": "getting-started.html", "onnx": "interop.html",
    "export": "interop.html", "keras": "keras.html", "gpu": "backends.html", "own layer": "own-layer.html",
    "learning rate": "steps/10-learning.html", "exercise": "exercises.html", "grade": "exercises.html",
}  # fmt: skip
RESULT = "document.querySelector('ul.search a')?.getAttribute('href')"
NOTHING = "document.querySelector('.search-summary')?.textContent.includes('did not match')"


def pages(folder: Path) -> list[Path]:
    """The pages that are read."""
    every = sorted(folder.rglob("*.html"))
    return [path for path in every if path.relative_to(folder).parts[0] not in SKIPPED]


def faults(chromium: Browser, page: Path) -> list[str]:
    """What is wrong with a page."""
    found: list[str] = []
    for place, (width, dark) in enumerate(SHOWN):
        show = chromium.show if place else partial(chromium.open, page)
        show(width=width, dark=dark)
        chromium.run(DRAWN)
        where = f"{width} pixels, {'dark' if dark else 'light'}"
        found += [f"{where}: sticks out: {what}" for what in chromium.run(OVERFLOW)]
        found += [f"{where}: contrast: {what}" for what in chromium.run(CONTRAST)]
        found += [f"{where}: {what}" for what in chromium.complaints]
        found += [f"no alternative text: {what}" for what in chromium.run(NO_ALTERNATIVE)]
        if width == min(WIDTHS):
            found += [f"a word of a table is broken: {what}" for what in chromium.run(BROKEN)]
        else:
            found += [f"code is cut: {what}" for what in chromium.run(CUT)]
    return list(dict.fromkeys(found))


def weight(chromium: Browser, page: Path) -> int:
    """Bytes of a page and of all that it loads."""
    chromium.open(page)
    files = {Path(unquote(urlparse(url).path)) for url in chromium.asked}
    return sum(file.stat().st_size for file in files if file.exists())


def astray(chromium: Browser, folder: Path, sought: dict[str, str]) -> list[str]:
    """Words for which the search finds another page first."""
    found = []
    for words, page in sought.items():
        chromium.open(f"{(folder / 'search.html').as_uri()}?q={quote(words)}")
        chromium.wait(f"{RESULT} || {NOTHING}")
        if not (first := chromium.run(RESULT) or "nothing").startswith(page):
            found.append(f"search: {words}: {first} comes first, not {page}")
    return found


def main() -> int:
    """See the module; the exit code is 1 if anything is wrong."""
    folder = Path(sys.argv[1]).resolve()
    if BROWSER is None:
        print("Chromium shows the pages. Received: none on this machine. Install it.", file=sys.stderr)
        return 1
    kinds: Counter[str] = Counter()
    with browser() as chromium:
        for page in pages(folder):
            for fault in faults(chromium, page):
                print(f"{page.relative_to(folder)}: {fault}")
                kinds[fault.split(": ")[-2] if ": " in fault else fault] += 1
        if (size := weight(chromium, folder / "index.html")) > MOST_BYTES:
            print(f"index.html: {size:,} bytes with all that it loads, more than {MOST_BYTES:,}")
            kinds["size"] += 1
        for fault in astray(chromium, folder, SOUGHT):
            print(fault)
            kinds["search"] += 1
    print(f"{len(pages(folder))} pages, first page {size:,} bytes: {sum(kinds.values())} faults")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
