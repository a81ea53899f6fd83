#!/usr/bin/env python3
"""Draws the dashboard as SVG, without Grafana: it asks a Prometheus what the panels of grafana.json ask.

    python3 draw.py http://127.0.0.1:9090 MINUTES > dashboard.svg

Panels without data, or with nothing but zeros, are left out.
"""

import json
import math
import pathlib
import sys
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

COLUMN, ROW, GAP = 50, 30, 8  # of Grafana's grid, in pixels
COLORS = ["#3274d9", "#e0752d", "#508642", "#8f3bb8", "#c4162a", "#0a8f8f", "#967302", "#707070"]


def ask(server, path, **query):
    address = f"{server}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address) as answer:
        return json.load(answer)["data"]["result"]


def legend(target, labels):
    text = target["legendFormat"]
    for name, value in labels.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def shown(value, unit):
    return f"{value:.3g}{' s' if unit == 's' else '/s' if unit == 'ops' else ''}"


def text(x, y, content, size=11, anchor="start", fill="#333", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
            f'font-weight="{weight}">{escape(content)}</text>')


def lines(panel, series, begin, end, width, height):
    """A chart of lines, with its threshold if it is near."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    threshold = defaults.get("thresholds", {"steps": []})["steps"][-1:]
    points = {name: [(float(at), float(value)) for at, value in values if not math.isnan(float(value))]
              for name, values in series}
    top = max([value for all_of_it in points.values() for _, value in all_of_it] + [1e-9])
    legends = 14 * ((len(points) + 1) // 2)
    left, right, upper, lower = 44, width - 10, 28, height - legends - 26
    x = lambda at: left + (at - begin) / (end - begin) * (right - left)
    y = lambda value: lower - value / (1.1 * top) * (lower - upper)
    for share in (0, 0.5, 1):
        at = y(share * top)
        yield f'<path d="M{left} {at:.1f}H{right}" stroke="#ddd"/>'
        yield text(left - 4, at + 4, shown(share * top, unit), 9, "end", "#777")
    for share, anchor in ((0, "start"), (1, "end")):
        minutes = time.strftime("%H:%M", time.gmtime(begin + share * (end - begin)))
        yield text(left + share * (right - left), lower + 14, minutes, 9, anchor, "#777")
    for step in threshold:
        if step["value"] <= 1.1 * top:
            yield f'<path d="M{left} {y(step["value"]):.1f}H{right}" stroke="#c4162a" stroke-dasharray="4"/>'
    for number, (name, found) in enumerate(points.items()):
        color = COLORS[number % len(COLORS)]
        way = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in found)
        yield f'<path d="M{way}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        row, column = divmod(number, 2)
        yield text(left + column * (right - left) / 2, height - legends + 6 + 14 * row, "— " + name, 10, fill=color)


def counts(panel, series, width, height):
    """One coloured field for each count."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    share = (height - 34) / len(series)
    for number, (name, values) in enumerate(series):
        value = float(values[-1][1])
        color = [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]
        fill = {"green": "#508642", "red": "#c4162a"}[color]
        at = 28 + number * share
        yield f'<rect x="8" y="{at:.1f}" width="{width - 16}" height="{share - 4:.1f}" fill="{fill}"/>'
        yield text(width / 2, at + share / 2 - 4, f"{value:.0f}", 20, "middle", "#fff", "bold")
        yield text(width / 2, at + share / 2 + 14, name, 11, "middle", "#fff")


def drawn(panel, server, begin, end):
    """The inside of a panel, or nothing if Prometheus has no data for it."""
    target = panel["targets"][0]
    expression = target["expr"].replace("$operation", ".*").replace("$__range", f"{int(end - begin)}s")
    expression = expression.replace("$__rate_interval", "1m")
    is_count = panel["type"] == "stat"
    if is_count:
        found = [(one["metric"], [one["value"]]) for one in ask(server, "query", query=expression, time=end)]
    else:
        step = max(5, int((end - begin) / 120))
        found = ask(server, "query_range", query=expression, start=begin, end=end, step=step)
        found = [(one["metric"], one["values"]) for one in found]
    series = [(legend(target, labels), values) for labels, values in found]
    series = [(name, values) for name, values in series if any(float(value) > 0 for _, value in values)]
    if not series:
        return None
    place = panel["gridPos"]
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    inside = counts(panel, series, width, height) if is_count else lines(panel, series, begin, end, width, height)
    frame = f'<rect width="{width}" height="{height}" fill="#fff" stroke="#ccc" rx="3"/>'
    return "".join([frame, text(8, 18, panel["title"], 13, weight="bold"), *inside])


def main():
    server, minutes = sys.argv[1].rstrip("/"), float(sys.argv[2])
    end = time.time()
    dashboard = json.loads((pathlib.Path(__file__).parent / "grafana.json").read_text())
    found = [(panel["gridPos"], drawn(panel, server, end - 60 * minutes, end)) for panel in dashboard["panels"]]
    found = [(place, inside) for place, inside in found if inside]
    # What is left out leaves no gap between the rows.
    rows = sorted({place["y"]: place["h"] for place, _ in found}.items())
    tops = {y: sum(height for above, height in rows if above < y) * ROW for y, _ in rows}
    height = sum(height for _, height in rows) * ROW + GAP
    panels = [f'<g transform="translate({place["x"] * COLUMN + GAP},{tops[place["y"]] + GAP})">{inside}</g>'
              for place, inside in found]
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * COLUMN + GAP} {height}" '
          f'font-family="sans-serif"><rect width="100%" height="100%" fill="#f4f5f5"/>')
    print("\n".join(panels))
    print("</svg>")


if __name__ == "__main__":
    main()
