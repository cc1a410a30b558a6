"""Which blocks make up which kind of input."""

from dataclasses import replace
from pathlib import PurePath

from kvdiag.model.demo import DemoDocument
from kvdiag.model.diagnosis import Diagnosis, DiagnosisDocument
from kvdiag.model.preflight import PreflightDocument
from kvdiag.model.probe import ProbeDocument
from kvdiag.model.probe_cold import ColdDocument
from kvdiag.model.probe_compare import CompareDocument
from kvdiag.model.probe_connections import ConnectionsDocument
from kvdiag.model.probe_kv import KvDocument
from kvdiag.model.probe_register import RegisterDocument
from kvdiag.model.report import DiagnosedBundle, ReportItem
from kvdiag.report.html import (
    bundle,
    diagnosis,
    preflight,
    probe,
    probe_cold,
    probe_compare,
    probe_connections,
    probe_kv,
    probe_register,
)
from kvdiag.report.html.blocks import Block, Lines, Part, Section, Tile, Tiles
from kvdiag.report.html.units import count, duration, moment, number


def part(item: ReportItem) -> Part:
    """Return everything that the page says about one input."""
    match item.content:
        case DiagnosedBundle() as one:
            return _bundle(item, one)
        case DiagnosisDocument() as one:
            return _diagnosis(item, one)
        case DemoDocument() as one:
            return _demo(item, one)
        case PreflightDocument() as one:
            return preflight.part(one)
        case ProbeDocument() as one:
            return probe.part(one)
        case KvDocument() as one:
            return probe_kv.part(one)
        case RegisterDocument() as one:
            return probe_register.part(one)
        case ConnectionsDocument() as one:
            return probe_connections.part(one)
        case ColdDocument() as one:
            return probe_cold.part(one)
        case CompareDocument() as one:
            return probe_compare.part(one)


def _bundle(item: ReportItem, one: DiagnosedBundle) -> Part:
    seen, found = one.overview, one.diagnosis
    notes: tuple[Block, ...] = (Lines(title="On reading", lines=item.input.notes),) if item.input.notes else ()
    minutes = seen.length_s / 60
    length = f"{number(minutes)} minutes" if minutes >= 5 else f"{number(seen.length_s)} s"
    return Part(
        title=PurePath(item.input.path).name or item.input.path,
        subtitle=f"trace bundle {item.input.path}: {count(seen.requests, 'request')} in {length}",
        headline=diagnosis.headline(found),
        sections=(
            diagnosis.stages_section(found),
            diagnosis.causes_section(found),
            *bundle.sections(seen, found),
            diagnosis.method_section(found, (*notes, *bundle.binned(seen))),
        ),
    )


def _diagnosis(item: ReportItem, one: DiagnosisDocument) -> Part:
    found = Diagnosis(
        verdict=one.verdict,
        causes=one.causes,
        stages=one.stages,
        baseline=one.baseline,
        incident=one.incident,
        data=one.data,
        steps=one.steps,
    )
    reason = (
        f"a diagnosis holds no single requests; where {one.origin} is a trace bundle, give kvdiag report its folder"
    )
    return Part(
        title=f"Diagnosis of {PurePath(one.origin).name or one.origin}",
        subtitle=f"diagnosis of {one.origin}, made {moment(one.time)} on {one.host}; read from {item.input.path}",
        headline=diagnosis.headline(found),
        sections=(
            diagnosis.stages_section(found),
            diagnosis.causes_section(found),
            *bundle.absent_sections(reason),
            diagnosis.method_section(found),
        ),
    )


def _demo(item: ReportItem, one: DemoDocument) -> Part:
    told = diagnosis.headline(one.diagnosis)
    outcome = "as injected" if one.matched else f"not what was injected ({one.expected_cause or 'nothing'})"
    offset = "–" if one.fault_offset_s is None else duration(one.fault_offset_s)
    tiles = (
        Tile("injected", one.fault_injected, one.fault_description),
        Tile("found", one.verdict.cause or one.verdict.status.replace("_", " "), outcome),
        Tile("fault began", offset, "after the first possible arrival"),
        Tile("transport", one.transport, "two network namespaces" if one.isolated else "loopback interface"),
        Tile("requests", f"{one.requests:,}", f"{number(one.rate)} per second, seed {one.seed}"),
    )
    reason = f"a demo's document holds no single requests; give its recording too: kvdiag report {one.bundle}"
    notes: tuple[Block, ...] = (Lines(title="Notes", lines=one.notes),) if one.notes else ()
    return Part(
        title=f"Demo: {one.fault_injected}",
        subtitle=f"kvdiag demo of {moment(one.time)} on {one.host}; read from {item.input.path}",
        headline=told if one.matched else replace(told, state="critical", word="NOT WHAT WAS INJECTED"),
        sections=(
            Section(title="What was done, what was found", blocks=(Tiles(tiles=tiles), *notes)),
            diagnosis.stages_section(one.diagnosis),
            diagnosis.causes_section(one.diagnosis),
            *bundle.absent_sections(reason),
            diagnosis.method_section(one.diagnosis),
        ),
    )
