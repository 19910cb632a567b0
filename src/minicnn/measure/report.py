"""A report as one HTML file that needs nothing else: readable on a phone, in light and in dark."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn import html
from minicnn.measure.drawing import Spot, drawing_of
from minicnn.measure.page import Block, Figure, Page, Paragraph, Repeat, Section, Table
from minicnn.measure.study import Setting, Study, StudyRun
from minicnn.measure.tables import to_html, words
from minicnn.measure.utilisation import disturbance

SHOWN = 18  # rows up to which a table is not folded

# After that of all pages: text to be read, and wide tables in boxes that scroll.
STYLE = """
main{max-width:62rem}
h1{font-size:1.7rem}h2{font-size:1.4rem;margin-top:3rem;border-top:1px solid var(--line);padding-top:1.2rem}
h3{font-size:1.1rem;margin-top:2rem}
nav{display:flex;flex-wrap:wrap;gap:.4rem 1rem;margin:1rem 0}
code{background:var(--card);padding:.05em .3em;border-radius:.25em}
pre{background:var(--card);padding:.8rem;border-radius:.4rem;overflow-x:auto}pre code{background:none;padding:0}
.scroll{overflow-x:auto;margin:1rem 0 .3rem}
table{border-collapse:collapse;font-size:.87rem;min-width:50%}
caption{text-align:left;font-weight:600;padding-bottom:.4rem}
td{min-width:4.5rem}
th,td{padding:.3rem .7rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
thead th{border-bottom:2px solid var(--soft)}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.note,figcaption{color:var(--soft);font-size:.85rem}.note{margin-top:.2rem;overflow-wrap:anywhere}
td:first-child{white-space:nowrap}td.s{white-space:normal}
figure{margin:1.5rem 0}.head{font-weight:600;margin:0 0 .4rem}.panels{display:grid;gap:.6rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr))}
summary{cursor:pointer;font-weight:600}
.chart{position:relative;max-width:46rem}.chart img{width:100%;height:auto;display:block}
.spot{position:absolute;border-radius:.3rem}.spot:focus{outline:2px solid var(--link)}
.tip{position:absolute;left:0;right:0;z-index:1;margin:.2rem auto;width:fit-content;max-width:100%;padding:.2rem .6rem;
font-size:.85rem;background:var(--card);border:1px solid var(--line);border-radius:.3rem;opacity:0;pointer-events:none}
.spot:is(:hover,:focus)+.tip{opacity:1}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;font-size:.9rem}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
@media(max-width:30rem){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}}
"""


@dataclass(frozen=True)
class Chapter:
    """A study that was carried out.

    Attributes:
        name: Name of the study.
        study: The study.
        runs: How, on what, and with what results it was carried out.
        page: What was found.
    """

    name: str
    study: Study
    runs: Sequence[StudyRun]
    page: Page


def to_html_page(chapters: Sequence[Chapter]) -> str:
    """The report.

    Args:
        chapters: The studies; the machine at the top is that of the first.
    """
    machine = chapters[0].runs[0].machine
    links = "".join(f"<a href='#{html.escape(c.name)}'>{html.escape(c.name)}</a>" for c in chapters)
    body = "".join(_chapter(c, machine) for c in chapters)
    return html.document(
        f"minicnn: {', '.join(c.name for c in chapters)}",
        f"<main><h1>minicnn, measured</h1><nav>{links}</nav>\n{_machine(machine)}{body}</main>",
        style=STYLE,
    )


def commands(chapter: Chapter) -> list[str]:
    """The commands that carry a study out as it was."""
    return [command(chapter.name, chapter.study, run.setting) for run in chapter.runs]


def command(name: str, study: Study, setting: Setting) -> str:
    """The command that carries a study out with a setting."""
    usual = vars(study.quick if setting.quick else study.full)
    parts = ["minicnn study", name, *(["--quick"] if setting.quick else [])]
    if setting.only:
        parts.append(f"--backends {','.join(setting.only)}")
    if setting.data != study.data:
        parts += [f"--data {name}" for name in setting.data]
    for size, value in vars(setting.sizes).items():
        if value != usual[size]:
            parts.append(f"--set {size}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
    return " ".join(parts)


def reservations(chapter: Chapter) -> list[str]:
    """Sentences on figures that were measured beside other programs, and on those that were not, with their command."""
    beside = [
        f"On the machine with {run.gpu or run.cpu}, while `{name}` was measured, {said}: times may be too long."
        for run in chapter.runs
        for name, busy in run.others.items()
        if name in run.results and (said := disturbance(busy))
    ]
    newest = {run.computer: run for run in reversed(chapter.runs)}  # older ones are not completed any more
    return beside + [
        f"Not measured yet on the machine with {run.gpu or run.cpu}: {', '.join(f'`{name}`' for name in lacks)}. "
        f"`{command(chapter.name, chapter.study, run.setting)}` takes what is missing."
        for run in chapter.runs
        if newest[run.computer] is run and (lacks := run.lacks(chapter.study))
    ]


def absent(runs: Sequence[StudyRun]) -> dict[str, str]:
    """Candidates that no machine could run, with the reason."""
    there = {name for run in runs for name in run.setting.candidates}
    return {name: why for run in runs for name, why in run.setting.absent.items() if name not in there}


def machine_facts(machine: Mapping[str, Any]) -> dict[str, str]:
    """The machine, in words, as far as a reader must know it."""
    versions = dict(machine["versions"])
    facts = {
        "CPU": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mb'] / 1024:.1f} GB of memory",
        "GPU": ", ".join(dict.fromkeys(v for k, v in machine["devices"].items() if "cuda" in k)) or "none",
        "system": machine["system"],
        "BLAS": machine["blas"],
        "threads": ", ".join(f"{k} {v}" for k, v in machine["threads"].items()),
        "settings": ", ".join(f"{k}={v}" for k, v in machine["environment"].items()) or "none",
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()),
    }
    return {k: v for k, v in facts.items() if v}


def _machine(machine: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in machine_facts(machine).items())
    return f"<dl>{rows}</dl>\n"


def _chapter(chapter: Chapter, machine: Mapping[str, Any]) -> str:
    study = chapter.study
    parts = [f"<section id='{html.escape(chapter.name)}'><h2>{html.escape(study.title)}</h2>"]
    parts += [_repeat(chapter) if isinstance(block, Repeat) else _block(block) for block in chapter.page.blocks]
    for run in chapter.runs:
        if run.machine != machine:
            parts.append(f"<p>This study ran elsewhere:</p>{_machine(run.machine)}")
        if run.setting.clocks:
            parts.append(f"<p class=note>GPU at the start: {html.escape('; '.join(run.setting.clocks))}</p>")
    if missing := absent(chapter.runs):
        items = "".join(f"<li><code>{html.escape(n)}</code>: {html.escape(why)}</li>" for n, why in missing.items())
        parts.append(f"<h3>Not on this machine</h3><ul class=note>{items}</ul>")
    return "\n".join(parts) + "</section>\n"


def _repeat(chapter: Chapter) -> str:
    code = html.escape("\n".join(commands(chapter)))
    return (
        f"<p class=note>Source: {words(chapter.study.source)}</p><h3>How to repeat it</h3>"
        "<p>With the versions named on this page installed, on a machine that does nothing else. "
        "Finished measurements are kept in the folder of the results: an interrupted study goes on.</p>"
        f"<pre><code>{code}</code></pre>" + "".join(f"<p>{words(text)}</p>" for text in reservations(chapter))
    )


def _block(block: Block) -> str:
    match block:
        case Repeat():
            return ""
        case Table() if len(block.rows) > SHOWN:
            return f"<details><summary>{words(block.title)}</summary>{to_html(block)}</details>"
        case Section():
            return f"<h3>{words(block.title)}</h3>"
        case Paragraph():
            return f"<p>{words(block.text)}</p>"
        case Table():
            return to_html(block)
        case Figure():
            return _figure(block)


def _figure(figure: Figure) -> str:
    charts = ""
    for panel in figure.panels:
        svg, spots = drawing_of(figure, [panel])
        data = base64.b64encode(svg.encode()).decode()
        label = html.escape(f"{figure.title}: {panel.title}")
        answers = "".join(map(_spot, spots))
        charts += f'<div class=chart><img alt="{label}" src="data:image/svg+xml;base64,{data}">{answers}</div>'
    caption = words(figure.caption)
    # The drawing of the only panel has the headline in it; of several none has.
    head = f"<p class=head>{words(figure.title)}</p>" if len(figure.panels) > 1 else ""
    return f"<figure>{head}<div class=panels>{charts}</div><figcaption>{caption}</figcaption></figure>"


def _spot(spot: Spot) -> str:
    """A place that shows its answer below itself while the pointer or the focus is there."""
    left, top, width, height = (f"{100 * share:.2f}%" for share in (spot.left, spot.top, spot.width, spot.height))
    place = f"left:{left};top:{top};width:{width};height:{height}"
    below = f"{100 * (spot.top + spot.height):.2f}%"
    return (
        f'<span class=spot tabindex=0 style="{place}"></span>'
        f'<span class=tip role=tooltip style="top:{below}">{html.escape(spot.text)}</span>'
    )
