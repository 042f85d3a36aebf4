"""No number in a sentence rests on a time that a slow host may have lengthened, unless
it wears a dagger.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from statistics import median

from systems.experiments import STEMS
from systems.records.own_times import COMPILING, by_events, sums_of, times_of, touched
from systems.records.record import Record
from tests.factories import RESULTS
from tools.render import load
from tools.render.everything import FACTS, spanning
from tools.render.load import Found, of_sentences
from tools.render.rows import DAGGER

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# How many shapes wait for the host, which is about the host.
ABOUT_THE_HOST = "host_decides"


def on_a_slow_host(found: Found) -> Found:
    """As if all of it had been measured on one, and by probes that saw it."""
    for record in (r for of_stem in found.values() for r in of_stem):
        for row in record.rows if of_sentences(record) else []:
            row.slowdown = 2.0
            sums = sums_of(row.own, by_events(record.protocol))
            row.unsteady = any(touched(row.metrics, row.own, names) for names in sums)
    return found


def on_a_quick_host(found: Found) -> Found:
    """Each time that may be too long shorter, to what is shown to be the GPU's own or
    to a half; marked as before.
    """
    for row in (r for of in found.values() for one in of for r in one.rows):
        times, own = times_of(row.metrics), dict(row.own)
        for name in filter(row.unsteady_in, times):
            if not COMPILING.fullmatch(name):
                share = max(0.5, own[name] / median(times[name]))
                for of in {f"{name}_ms", f"{name}_rounds_ms"} & {*row.metrics}:
                    row.metrics[of] = [share * ms for ms in row.metrics[of]]
                own[name] *= share
        row.own = own
    return found


def facts_of(found: Found) -> dict[str, Mapping[str, str]]:
    def ours(stem: str) -> Record | None:
        return next(filter(of_sentences, found[stem]), None)

    of_stems = {
        stem: import_module(f"tools.render.stems.{stem}").facts(ours(stem))
        for stem in STEMS
    }
    return of_stems | {name: spanning(of).facts(found) for name, of in FACTS.items()}


def differ(one: str, other: str) -> bool:
    """Whether their numbers do, by more than the tenth that two times may each have
    from a host and be the GPU's own.
    """
    pairs = [
        [float(number.replace(",", "")) for number in NUMBER.findall(text)]
        for text in (one, other)
    ]
    return len(pairs[0]) != len(pairs[1]) or any(
        max(two) > 1.25 * min(two) for two in zip(*pairs, strict=True)
    )


def test_a_fact_that_a_slow_host_may_have_changed_wears_a_dagger():
    slow = facts_of(on_a_slow_host(load.load(RESULTS)))
    quick = facts_of(on_a_quick_host(on_a_slow_host(load.load(RESULTS))))
    unmarked = {
        f"{of}.{key}: {text}, on a quick host {quick[of][key]}"
        for of in slow
        for key, text in slow[of].items()
        if differ(text, quick[of][key])
        and not text.count(DAGGER)
        and not key.startswith(ABOUT_THE_HOST)
    }
    assert unmarked == set()
    assert sum(DAGGER in text for of in slow.values() for text in of.values()) > 20
