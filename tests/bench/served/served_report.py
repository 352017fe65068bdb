# SPDX-License-Identifier: Apache-2.0
"""Prints and draws the figures of the servers: each case when it is measured, all in Markdown."""

from statistics import median

from plot import Canvas, draw_panel, finish
from sections import Ratio
from tables import row

FORMATS = {"JSON": "JSON", "OIP binary": "Open Inference Protocol, binary"}  # that peers have


def middle(entry, key):
    """Returns the median of the rounds, or None if one of them has none."""
    figures = [each[key] for each in entry["rounds"]]
    return None if None in figures else median(figures)


def choose_settings(case):
    """Returns the entries by server and format, each in the setting that served most requests."""
    chosen = {}
    for entry in case["results"]:
        key = entry["server"], entry.get("format")
        if "pss" in entry and (key not in chosen
                               or middle(entry, "rate") > middle(chosen[key], "rate")):
            chosen[key] = entry
    return chosen


def ratio_to(chosen, name, form):
    """Returns attnd's requests a second over those of another server, in the same format."""
    entry, own = chosen.get((name, form)), chosen.get(("attnd", form))
    if name == "attnd" or entry is None or own is None:
        return None
    ratios = [mine["rate"] / figures["rate"]
              for mine, figures in zip(own["rounds"], entry["rounds"])]
    return Ratio(min(ratios), median(ratios), max(ratios))


def digits(number):
    """Returns at least three digits."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:#.3g}"


def milliseconds(number):
    return "-" if number is None else digits(number) + " ms"


def figures_text(entry):
    return [digits(middle(entry, "rate")),
            *(milliseconds(middle(entry, key)) for key in ("p50", "p99", "cpu")),
            f"{entry['pss'] / 1e6:.0f} MB", f"{entry['rss'] / 1e6:.0f} MB"]


def print_served(case):
    print(f"\n{case['title']}\n  {'':22}{'workers':>9}{'requests/s':>12}{'p50':>11}{'p99':>11}"
          f"{'CPU':>11}{'PSS':>9}{'RSS':>9}{'difference':>12}")
    for entry in case["results"]:
        name = f"{entry['server']} {entry.get('format', '')}"
        if "pss" not in entry:
            reason = entry.get("failed") or entry["unavailable"]
            print(f"  {name:22}{'FAILED' if 'failed' in entry else 'not timed'}: {reason}")
            continue
        rate, p50, p99, cpu, pss, rss = figures_text(entry)
        print(f"  {name:22}{entry['workers']:9}{rate:>12}{p50:>11}{p99:>11}{cpu:>11}{pss:>9}"
              f"{rss:>9}{entry['difference']:12.1e}")


def case_lines(case):
    yield f"{case['title'][0].upper()}{case['title'][1:]}; {case['connections']} connections:"
    yield ""
    yield row("server", "format", "workers", "requests/s", "attnd over it", "p50", "p99",
              "CPU per request", "PSS", "RSS")
    yield "|---" * 10 + "|"
    chosen = choose_settings(case)
    for (name, form), entry in chosen.items():
        over = ratio_to(chosen, name, form)
        rate, *others = figures_text(entry)
        yield row(name, form, str(entry["workers"]), rate, f"{over.middle:.1f}x" if over else "",
                  *others)
    yield ""


def list_reasons(report, key):
    """Returns why servers have no figures, without duplicates."""
    return list(dict.fromkeys(f"{entry['server']}: {entry[key]}" for case in report["cases"]
                              for entry in case["results"] if key in entry))


def served_markdown(report):
    lines = [f"{report['machine']}, {report['date']}; medians of {report['rounds']} rounds.", ""]
    for case in report["cases"]:
        lines += case_lines(case)
    if report["versions"]:
        lines.append(f"Measured: {', '.join(report['versions'])}.")
    lines += [f"Not timed: {text}." for text in list_reasons(report, "unavailable")]
    lines += [f"FAILED: {text}." for text in list_reasons(report, "failed")]
    return "\n".join(lines)


def draw_served(report):
    """Returns the ratios of requests a second as SVG: a row for each case, a column for a format."""
    cases = [(case["title"], choose_settings(case)) for case in report["cases"]]
    names = list(dict.fromkeys(name for _, chosen in cases for name, _ in chosen
                               if name != "attnd"))
    rows = {title.split(":")[0]: [[ratio_to(chosen, name, form) for name in names]
                                  for form in FORMATS] for title, chosen in cases}
    canvas = Canvas()
    draw_panel(canvas, "Requests a second of attnd over those of other servers", "", names,
               list(FORMATS.values()), rows)
    return finish(canvas, len(FORMATS), [
        "Right of 1: slower than attnd. Bars: the median ratio of the rounds; thin "
        "lines: minimum to maximum, cut at the edge.", f"{report['machine']}, {report['date']}"])
