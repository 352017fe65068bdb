# SPDX-License-Identifier: Apache-2.0
"""Prints the figures: each case when it is measured, and all in Markdown at the end."""

from statistics import median

from sections import list_sections, ratio, shape_text, threads_text, was_timed


PEAKS = {"peaks_gflops": "in registers", "loaded_peaks_gflops": "operands loaded"}


def shares(entry):
    """Returns the shares of both peaks of attnd's kernels, as text; empty where there is none."""
    return [f"{entry['gflops'] / median(entry[key]):.2f}" if key in entry else "" for key in PEAKS]


def print_peaks(results):
    """A large spread means that other programs ran."""
    for name, entry in results.items():
        texts = [f"{word} {median(entry[key]):.0f} ({min(entry[key]):.0f}..{max(entry[key]):.0f})"
                 for key, word in PEAKS.items() if key in entry]
        if texts:
            print(f"  multiply-add peak of {name}, GFLOP/s: {', '.join(texts)}")


def print_case(case):
    print(f"\n{case['part']} {shape_text(case)}, {threads_text(case['threads'])}, "
          f"{case['gflop']:.3f} GFLOP")
    print_peaks(case["results"])
    print(f"  {'':18}{'ms':>10}  {'(min..max of the rounds)':26}{'GFLOP/s':>8}"
          f"{'over attnd':>12}{'of peak':>9}{'loaded':>8}{'difference':>12}")
    for name, entry in case["results"].items():
        if "median_ms" not in entry:
            reason = entry.get("failed") or entry.get("unavailable") or "attnd f32 failed"
            print(f"  {name:18}{'FAILED' if 'failed' in entry else 'not timed'}: {reason}")
            continue
        over = ratio(case, name, f"attnd {entry['precision']}")
        spread = f"({entry['min_ms']:.3f}..{entry['max_ms']:.3f})"
        difference = f"{entry['difference']:.1e}" if "difference" in entry else ""
        of_peak, of_loaded = shares(entry)
        print(f"  {name:18}{entry['median_ms']:10.3f}  {spread:26}{entry['gflops']:8.1f}"
              f"{f'{over.middle:.2f}' if over else '':>12}{of_peak:>9}{of_loaded:>8}"
              f"{difference:>12}")


def row(*cells):
    return f"| {' | '.join(cells)} |"


def milliseconds(entry):
    text = f"{entry['median_ms']:#.3g}" if entry["median_ms"] < 99.95 else \
        f"{entry['median_ms']:.0f}"
    return f"{text} ms"


def other_cell(case, name, baseline):
    over = ratio(case, name, baseline)
    return f"{over.middle:.2f}x, {milliseconds(case['results'][name])}" if over else ""


def baseline_cells(case, name):
    if not was_timed(case, name):
        return "", "", "", ""
    entry = case["results"][name]
    return milliseconds(entry), f"{entry['gflops']:.0f}", *shares(entry)


def section_lines(section):
    yield f"{section.title}{f' ({section.why})' if section.why else ''}:"
    yield ""
    yield row("shape", "threads", *section.others, section.baseline, "GFLOP/s", "of peak",
              "loaded")
    yield "|---" * (len(section.others) + 6) + "|"
    for case in section.cases:
        yield row(shape_text(case), str(case["threads"]),
                  *(other_cell(case, name, section.baseline) for name in section.others),
                  *baseline_cells(case, section.baseline))
    yield ""


def collect(cases, key):
    """Returns the values of `key` in all entries, by name, in order and without duplicates."""
    found = {}
    for case in cases:
        for name, entry in case["results"].items():
            if key in entry:
                found.setdefault(name, []).append(entry[key])
    return {name: list(dict.fromkeys(values)) for name, values in found.items()}


def markdown(report):
    """Returns the tables in Markdown; docs/performance.md has their ratios."""
    cases = report["cases"]
    rounds = max((len(entry.get("rounds_ms", ())) for case in cases
                  for entry in case["results"].values()), default=0)
    lines = [f"{report['machine']}, {report['date']}. Each cell: the ratio to attnd's time in "
             f"the same round, median of {rounds} rounds (above 1, attnd is faster), and the "
             "median time. Peak: multiply-adds in registers, by the same kernels of attnd; "
             "loaded: with operands from the first-level cache.", ""]
    for section in list_sections(cases):
        lines += section_lines(section)
    details = [text for texts in collect(cases, "detail").values() for text in texts]
    lines += ["Measured: " + "; ".join(dict.fromkeys(details)) + ".", ""]
    differences = collect(cases, "difference")
    lines += ["Largest difference from float64, of the largest output: " + ", ".join(
        f"{name} {max(values):.0e}" for name, values in differences.items()) + ".", ""]
    for word, key in (("Not timed", "unavailable"), ("FAILED", "failed")):
        for name, reasons in collect(cases, key).items():
            lines.append(f"{word}: {name}: {'; '.join(reasons)}.")
    return "\n".join(lines).rstrip()
