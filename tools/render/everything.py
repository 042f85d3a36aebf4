"""Render records to tables, figures and facts, which pages include. Rendering is
deterministic and needs neither a GPU nor torch.

Each experiment has a module of its name in tools/render/stems: `fragments(records)`
returns the files that pages include, `facts(record)` the numbers in their sentences.
"""

import math
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

import yaml

from systems.experiments import STEMS
from systems.records.record import Record
from tools.render.claims import list_claims
from tools.render.load import Found, is_primary, primary_gpu
from tools.render.markdown import conditions, round_numbers, snippet_sections, typeset
from tools.render.rows import measured_records

# Modules of `spanning` whose fragments are rendered from records.
FROM_RECORDS = (
    *("writeup", "explorer", "calculator", "ladder"),
    *("index", "student", "scripts", "gpu"),
)
# Modules of `spanning` that also give facts.
WITH_FACTS = ("ladder", "calculator")
# Groups of facts that are not rounded, because sentences need all their digits.
UNROUNDED = ("accumulation", "chip", "flash_accuracy", "gradient_checkpointing")


def render(found: Found) -> dict[str, str]:
    found = {stem: found.get(stem, []) for stem in STEMS}
    files: dict[str, str] = {}
    gpus = {r.device.slug: r.device.name for rs in found.values() for r in rs}
    facts: dict[str, Mapping[str, str]] = {
        "gpu": {"name": gpus.get(primary_gpu(), primary_gpu())},
        **{name: import_spanning(name).facts(found) for name in WITH_FACTS},
        **import_spanning("envelope").facts(found),
    }
    for stem in STEMS:
        stem_files, own_facts = render_stem(stem, found[stem])
        files |= {f"{stem}-{name}": text for name, text in stem_files.items()}
        facts[stem] = {**own_facts, **facts.get(stem, {})}
    for name in FROM_RECORDS:
        files |= import_spanning(name).fragments(found)
    files |= import_spanning("glossary").fragments()
    files["conditions.md"] = snippet_sections(
        {stem: conditions(records) for stem, records in found.items()}
    )
    prose = {
        name: {key: typeset(shorten(texts[key])) for key in texts}
        for name, texts in facts.items()
        for shorten in [str if name in UNROUNDED else round_numbers]
    }
    writeup = import_spanning("writeup")
    files |= writeup.answer_fragments(prose, writeup.answered_pages(found))
    options = {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    return {**files, "facts.yml": yaml.safe_dump({"facts": prose}, **options)}


def import_spanning(name: str) -> ModuleType:
    return import_module(f"tools.render.spanning.{name}")


def render_stem(
    stem: str, records: list[Record]
) -> tuple[dict[str, str], Mapping[str, str]]:
    """Return an experiment's {file: text}, and {fact: text} from the primary GPU."""
    builder = import_module(f"tools.render.stems.{stem}")
    try:
        for claim in list_claims(builder):
            for record in measured_records(records):
                claim.judge(record)
        files = builder.fragments(records)
        return files, builder.facts(next(filter(is_primary, records), None))
    except Exception as error:
        error.add_note(f"while rendering {', '.join(r.results_path for r in records)}")
        raise
