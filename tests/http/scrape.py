# SPDX-License-Identifier: Apache-2.0
"""Reads GET /metrics with the parser of prometheus_client."""

import time

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One reply of GET /metrics."""

    def __init__(self, server):
        self.reply = server.get("/metrics")
        assert self.reply.status_code == 200, self.reply.text
        self.families = list(text_string_to_metric_families(self.reply.text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def names(self):
        return [family.name + "_total" * (family.type == "counter") for family in self.families]

    def all(self, name, **labels):
        """Returns the samples of this name whose labels include these."""
        return [sample for sample in self.samples
                if sample.name == name and labels.items() <= sample.labels.items()]

    def sum(self, name, **labels):
        return sum(sample.value for sample in self.all(name, **labels))

    def value(self, name, **labels):
        (sample,) = self.all(name, **labels)
        return sample.value


def wait_for_value(server, value, name, timeout=30, **labels):
    """Scrapes until a sum has this value; returns the last scrape."""
    end = time.monotonic() + timeout
    while True:
        scrape = Scrape(server)
        if scrape.sum(name, **labels) == value or time.monotonic() > end:
            assert scrape.sum(name, **labels) == value, scrape.reply.text
            return scrape
        time.sleep(0.05)
