"""Blocks that probes share: verdicts on figures, proofs, ends, and what could not be measured."""

from collections.abc import Sequence
from typing import Any

from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag.model.probe_judgement import Judgement, Metric
from kvdiag.report.html.blocks import Block, Cell, Empty, Headline, Lines, Section, State, Table, cell, table
from kvdiag.report.html.diagnosis import evidence_table
from kvdiag.report.html.units import in_unit

PROOF = {"proved": "proved", "contradicted": "CONTRADICTED", "not_observable": "not observable here"}
_STATES: dict[str, State] = {"met": "good", "missed": "critical", "undetermined": "warning"}


def headline(
    sentence: str,
    figure: str,
    figure_note: str,
    *,
    judgements: Sequence[Judgement] = (),
    proof: TransportProof | None = None,
    failure: str | None = None,
    missed: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> Headline:
    """Return a probe's verdict: gravest first a failure, a contradicted proof, missed limits, limits not judged."""
    broken = [one for one in judgements if one.status == "missed"]
    open_ = [one for one in judgements if one.status == "undetermined"]
    state: State = "good"
    word, actions = "MEASURED", ["keep this document as the baseline of later runs (--out FILE, then --baseline FILE)"]
    if judgements:
        word = "LIMITS MET"
    if not figure:
        state, word = "unknown", "NOTHING MEASURED"
        actions = ["run it again with more --rounds, and look at what is not observable here"]
    if proof is not None and proof.status == "not_observable":
        actions = ["read the counters where the device has them: which transport carried the bytes is not proved here"]
    if open_ or unknown:
        state, word = "warning", "CANNOT JUDGE"
        actions = [*_reasons(open_), *unknown]
    if broken or missed:
        state, word = "critical", "LIMIT MISSED"
        sentence = f"{sentence}; missed: {', '.join([*(one.metric for one in broken), *missed])}"
        actions = ["run kvdiag preflight on both nodes; compare with kvdiag probe compare"]
    if proof is not None and proof.status == "contradicted":
        state, word = "critical", "NOT CARRIED AS NAMED"
        sentence = f"The counters contradict the transport that was asked for. {sentence}"
        actions = ["find what carried the bytes: the evidence of the proof names the counters that disagree"]
    if failure is not None:
        state, word = "critical", "INCOMPLETE"
        sentence = f"The run failed: {failure}"
        actions = ["put that right and run it again; what follows is what was measured before it"]
    return Headline(
        state=state, word=word, sentence=sentence, figure=figure, figure_note=figure_note, actions=tuple(actions)
    )


def _reasons(found: Sequence[Judgement]) -> list[str]:
    """Return why verdicts are open, a reason that they share once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.rule, one.reason), []).append(one.metric)
    return [
        f"{rule} of {names[0] if len(names) == 1 else f'{len(names)} figures'}: {reason}"
        for (rule, reason), names in groups.items()
    ]


def metric(one: Metric | None) -> Cell:
    """Return a figure with its interval, ordered by its value."""
    if one is None:
        return cell("–")
    return cell(figure(one), one.value)


def figure(one: Metric) -> str:
    """Return `value (low to high)` in words, or the value alone where there is no interval."""
    said = in_unit(one.value, one.unit)
    if one.low is None or one.high is None or one.low == one.high:
        return said
    return f"{said} ({in_unit(one.low, one.unit)} to {in_unit(one.high, one.unit)})"


def drawn(one: Metric, scale: float = 1.0, least: float = 0.0) -> dict[str, Any]:
    """Return a figure as a chart's row: value, low and high, times `scale` and not below `least`, and the words."""
    low, high = (one.value if end is None else end for end in (one.low, one.high))
    sized = {name: max(end * scale, least) for name, end in (("value", one.value), ("low", low), ("high", high))}
    return {**sized, "text": figure(one)}


def closing(
    judgements: Sequence[Judgement], proofs: Sequence[tuple[str, TransportProof]], missing: Sequence[str]
) -> tuple[Section, ...]:
    """Return the sections that every probe ends with."""
    sections = []
    if judgements:
        sections.append(Section(title="Limits and baseline", blocks=(_judged(judgements),)))
    if proofs:
        blocks: list[Block] = []
        for name, proof in proofs:
            title = f"{name}: {PROOF[proof.status]}"
            if proof.evidence:
                found = evidence_table(proof.evidence)
                blocks.append(Table(title=title, columns=found.columns, rows=found.rows, sortable=False))
            if proof.missing:
                blocks.append(Empty(title=f"{name}: not observable here", reason="; ".join(proof.missing)))
            elif not proof.evidence:
                blocks.append(Empty(title=title, reason="the run left no evidence"))
        lead = "Whether the kernel's own counters agree that the transport carried every byte."
        sections.append(Section(title="Proof of the transport", blocks=tuple(blocks), lead=lead))
    if missing:
        sections.append(
            Section(title="Not observable here", blocks=(Lines(title="Not measured", lines=tuple(missing)),))
        )
    return tuple(sections)


def ends(found: ProbeEnds | None) -> str:
    """Return `device → device at peer (host)` as far as it is known."""
    if found is None:
        return "both ends on this host"
    link = f"{found.local_device} → {found.peer_device}, " if found.local_device else ""
    mtu = f", path MTU {found.path_mtu}" if found.path_mtu else ""
    return f"{link}peer {found.peer} ({found.peer_host}){mtu}"


def _judged(judgements: Sequence[Judgement]) -> Table:
    rows = [
        (
            Cell(one.status.replace("undetermined", "cannot judge"), state=_STATES[one.status]),
            Cell(one.rule, code=True),
            cell(one.metric),
            cell(in_unit(one.value, one.unit), one.value),
            cell("–" if one.limit is None else in_unit(one.limit, one.unit), one.limit),
            cell(one.reason),
        )
        for one in judgements
    ]
    return table("Verdicts", ("verdict", "rule", "figure", "#value", "#limit", "why"), rows)
