# SPDX-License-Identifier: Apache-2.0
"""Reads GET /metrics with the parser of prometheus_client."""

import functools
import time

from prometheus_client.parser import text_string_to_metric_families


AGE = 0.1  # seconds that counters which a reply shows may be old


def wait_for_counters():
    """What was counted before is in replies after."""
    time.sleep(1.1 * AGE)


class Scrape:
    """One reply of GET /metrics."""

    def __init__(self, server):
        wait_for_counters()
        self.reply = server.get("/metrics")
        assert self.reply.status_code == 200, self.reply.text

    @functools.cached_property
    def families(self):
        return list(text_string_to_metric_families(self.reply.text))

    @property
    def samples(self):
        return [sample for family in self.families for sample in family.samples]

    def names(self):
        return [family.name + "_total" * (family.type == "counter") for family in self.families]

    def all(self, name, **labels):
        """Returns the samples of this name whose labels include these. Only their lines are parsed: the parser
        takes long, and some tests scrape until a number is there."""
        lines = [line for line in self.reply.text.splitlines(keepends=True) if line.startswith(name)]
        return [sample for family in text_string_to_metric_families("".join(lines)) for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()]

    def sum(self, name, **labels):
        return sum(sample.value for sample in self.all(name, **labels))

    def value(self, name, **labels):
        (sample,) = self.all(name, **labels)
        return sample.value


def wait_for_scrape(server, condition, timeout=120):
    """Scrapes until condition(scrape) holds; returns that scrape. A busy machine may hold it back for long."""
    end = time.monotonic() + timeout
    while not condition(scrape := Scrape(server)):
        assert time.monotonic() < end, scrape.reply.text
        time.sleep(0.05)
    return scrape


def wait_for_value(server, value, name, **labels):
    """Scrapes until the sum of these samples has this value; returns that scrape."""
    return wait_for_scrape(server, lambda scrape: scrape.sum(name, **labels) == value)
