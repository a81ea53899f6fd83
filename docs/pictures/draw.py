#!/usr/bin/env python3
"""Draws the pictures of the README and the guides, as SVG: `python3 docs/pictures/draw.py` writes them beside itself. The plots of
`docs/benchmarks` are drawn from the tables of `docs/benchmarks/report.md`.

The colours follow the reader's light or dark mode. Rustdoc copies no files, so each picture is written a second time as a link
definition that holds it, in `src/pictures`; `src/lib.rs` puts it before the page that shows the picture. `form.png` is taken
by `cargo test -p idem-browser -- --ignored pictures`.
"""

import base64
import pathlib
import re
from xml.sax.saxutils import escape

STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #24292f }
  .small { font-size: 12px; fill: #57606a }
  .lane { stroke: #d0d7de; stroke-width: 1.5 }
  .body { fill: #ddf4ff; stroke: #0969da }
  .record { fill: #fff8c5; stroke: #9a6700 }
  .done { fill: #dafbe1; stroke: #1a7f37 }
  .lost { fill: none; stroke: #cf222e; stroke-dasharray: 4 3 }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .arrow { stroke: #57606a; stroke-width: 1.4; fill: none }
  .head { fill: #57606a }
  .crash { stroke: #cf222e; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .lane { stroke: #3d444d }
    .body { fill: #0c2d6b; stroke: #4493f8 }
    .record { fill: #3b2300; stroke: #d29922 }
    .done { fill: #04260f; stroke: #3fb950 }
    .lost, .crash { stroke: #f85149 }
    .box { fill: #151b23; stroke: #656c76 }
    .arrow { stroke: #9198a1 }
    .head { fill: #9198a1 }
  }
"""


HERE = pathlib.Path(__file__).parent


def define(name, kind, picture):
    content = base64.b64encode(picture.read_bytes()).decode()
    definition = f"[picture-{name}]: data:{kind};base64,{content}\n"
    (HERE / "../../src/pictures" / f"{name}.txt").write_text(definition)


class Picture:
    def __init__(self, width, height, title):
        self.size, self.title, self.parts = (width, height), title, []

    def text(self, x, y, content, kind="", anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>')

    def line(self, x1, y1, x2, y2, kind="lane"):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>')

    def bar(self, x1, x2, y, kind, label):
        self.parts.append(f'<rect x="{x1}" y="{y - 14}" width="{x2 - x1}" height="28" rx="5" class="{kind}"/>')
        self.text((x1 + x2) / 2, y + 4.5, label, anchor="middle")

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="arrow" marker-end="url(#head)"/>')

    def crash(self, x, y):
        self.line(x - 7, y - 7, x + 7, y + 7, "crash")
        self.line(x - 7, y + 7, x + 7, y - 7, "crash")

    def svg(self):
        width, height = self.size
        marker = ('<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                  'orient="auto"><path d="M0 0 8 4 0 8z" class="head"/></marker>')
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                 f'height="{height}" role="img">', f"<title>{escape(self.title)}</title>",
                 f"<style>{STYLE}</style>", f"<defs>{marker}</defs>", *self.parts, "</svg>", ""]
        return "\n".join(lines)

    def write(self, name):
        picture = HERE / f"{name}.svg"
        picture.write_text(self.svg())
        define(name, "image/svg+xml", picture)


def timeline():
    picture = Picture(860, 250, "Two callers share one body; after a crash, another caller takes the key over")
    first, record, second = 70, 130, 190
    for y, label in ((first, "process A"), (record, "record"), (second, "process B")):
        picture.text(10, y + 5, label)
        picture.line(90, y, 850, y)
    picture.text(250, 26, "two calls, one body", "", "middle")
    picture.text(655, 26, "the owner crashes", "", "middle")
    picture.line(455, 14, 455, 236)

    picture.bar(110, 300, first, "body", "body runs")
    picture.arrow(110, first + 16, 110, record - 16)
    picture.text(118, 104, "claim", "small")
    picture.bar(110, 300, record, "record", "in flight, lease renewed")
    picture.arrow(300, first + 16, 300, record - 16)
    picture.text(308, 104, "commit", "small")
    picture.bar(300, 440, record, "done", "committed")
    picture.arrow(170, second - 16, 170, record + 16)
    picture.bar(170, 330, second, "box", "duplicate waits")
    picture.arrow(330, record + 16, 330, second - 16)
    picture.text(338, 166, "same answer", "small")

    picture.bar(475, 570, first, "body", "body runs")
    picture.crash(576, first)
    picture.arrow(475, first + 16, 475, record - 16)
    picture.text(483, 104, "claim", "small")
    picture.bar(475, 650, record, "record", "in flight")
    picture.text(600, 104, "lease ends", "small")
    picture.arrow(520, second - 16, 520, record + 16)
    picture.bar(520, 650, second, "box", "duplicate waits")
    picture.bar(650, 765, record, "record", "attempt 2")
    picture.arrow(650, record + 16, 650, second - 16)
    picture.text(658, 166, "take-over", "small")
    picture.bar(650, 765, second, "body", "body runs")
    picture.arrow(765, second - 16, 765, record + 16)
    picture.bar(765, 850, record, "done", "committed")
    picture.text(470, 232, "a late commit of process A is refused: its attempt is over", "small")
    picture.write("timeline")


def stores():
    picture = Picture(860, 185, "Which store: by where the effects of the body are")
    picture.bar(300, 560, 30, "box", "Where do the body's effects go?")
    choices = [
        (20, 220, "rows in your SQL database", "PostgreSQL, MySQL, SQLite", "record and rows in one commit"),
        (235, 435, "other services, and you run Redis", "Redis or Valkey", "cheapest call, many processes"),
        (450, 650, "other services, no Redis", "your SQL database", "no new server"),
        (665, 850, "this process alone, tests", "memory", "nothing survives a restart"),
    ]
    for left, right, when, store, why in choices:
        middle = (left + right) / 2
        picture.arrow(430, 46, middle, 82)
        picture.text(middle, 100, when, "small", "middle")
        picture.bar(left, right, 132, "done", store)
        picture.text(middle, 168, why, "small", "middle")
    picture.write("stores")


UNITS = {"/s": 1, " k/s": 1000, " µs": 1}


def quantities(text):
    """The quantities of a table's last column, as numbers: of the subject, and of the floor."""
    return [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)( k/s|/s| µs)", text)]


def plot(name, title, groups, measure, unit):
    """Draws bars of the floor, of a call by hand and of the attribute, for each group of rows."""
    rows = {}
    for line in (HERE / "../benchmarks/report.md").read_text().splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.split("|")]
        if len(cells) > 6:
            rows[cells[1]] = cells[6]
    picture = Picture(860, 40 + 26 * 3 * len(groups) + 14 * len(groups), title)
    picture.text(10, 22, f"{title} ({unit})")
    bars = []
    for label, row in groups:
        by_hand, floor = quantities(rows[measure(row, "idem by hand")])
        attribute, _ = quantities(rows[measure(row, "#[idempotent]")])
        bars += [(label, "box", "floor", floor), ("", "body", "by hand", by_hand), ("", "done", "attribute", attribute)]
    longest = max(value for *_, value in bars)
    y = 40
    for label, kind, subject, value in bars:
        y += 14 if label else 0
        picture.text(10, y + 12, label)
        picture.text(285, y + 12, subject, "small", "end")
        width = 460 * value / longest
        picture.parts.append(f'<rect x="295" y="{y}" width="{width:.1f}" height="18" rx="3" class="{kind}"/>')
        picture.text(303 + width, y + 13, f"{value:,.0f}", "small")
        y += 26
    (HERE / f"../benchmarks/{name}.svg").write_text(picture.svg())


def plots():
    kinds = ["first execution", "replay"]
    plot("latency", "Over Redis, one call at a time", [(f"{kind}, {p}", (kind, p)) for kind in kinds for p in ("p50", "p99")],
         lambda row, subject: f"{row[0]}, {row[1]}: {subject} over the floor", "µs")
    plot("throughput", "Over Redis, many calls at once", [(f"{kind}, {n} at once", (kind, n)) for kind in kinds for n in (1, 8, 64, 512)],
         lambda row, subject: f"{row[0]}, {row[1]} at once: {subject}, share of the floor", "calls a second")


if __name__ == "__main__":
    plots()
    timeline()
    stores()
    define("form", "image/png", HERE / "form.png")
