import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import ValidationError

from kvdiag.model.trace import CounterSample, Instant, Slice, Trace
from kvdiag.report.trace import encode
from tests.report.trace_format import events_of, tracks


def piece(start_s: float, duration_s: float, track: str = "stages", name: str = "a") -> Slice:
    return Slice(process="probe", track=track, name=name, category="c", start_s=start_s, duration_s=duration_s)


def test_every_kind_of_event_keeps_the_format_and_time_starts_at_zero() -> None:
    trace = Trace(
        slices=(piece(1000.5, 0.25), piece(1000.6, 0.05, name="inside")),
        instants=(Instant(process="node-2", track="faults", name="link down", category="fault", at_s=1000.7),),
        counters=(CounterSample(process="probe", name="Gb/s", at_s=1000.5, value=12.5),),
        about={"host": "a"},
    )
    events = events_of(encode(trace))
    whole, inside = tracks(events)["stages"]
    assert (whole["ts"], whole["dur"]) == (0.0, 250_000.0)
    assert (inside["ts"], inside["dur"]) == (100_000.0, 50_000.0)
    kinds = [event["ph"] for event in events if event["ph"] != "M"]
    assert sorted(kinds) == ["C", "X", "X", "i"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["probe", "node-2"]


def test_an_empty_trace_is_a_trace() -> None:
    assert events_of(encode(Trace())) == []


def test_slices_that_cross_are_dealt_out_to_further_tracks() -> None:
    crossing = (piece(0, 10), piece(5, 10), piece(6, 3), piece(12, 1), piece(20, 1))
    found = tracks(events_of(encode(Trace(slices=crossing))))
    assert {name: len(slices) for name, slices in found.items()} == {"stages": 4, "stages (2)": 1}


def test_what_is_not_finite_is_left_out_and_the_rest_kept() -> None:
    trace = Trace(
        slices=(piece(math.nan, 1), piece(1, math.inf), piece(1, 2)),
        counters=(CounterSample(process="p", name="x", at_s=1, value=math.nan),),
    )
    assert [event["ts"] for event in events_of(encode(trace)) if event["ph"] != "M"] == [0.0]


# Nanoseconds, as the clocks give them: with microseconds as floats, neighbours would touch or cross.
_moments = st.integers(min_value=0, max_value=10**15)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_moments, st.integers(0, 10**12), st.sampled_from(["a", "b"])), max_size=12))
def test_any_slices_make_a_trace_that_keeps_the_rules(found: list[tuple[int, int, str]]) -> None:
    slices = tuple(piece(start * 1e-9, duration * 1e-9, track) for start, duration, track in found)
    events = events_of(encode(Trace(slices=slices)))
    assert sum(event["ph"] == "X" for event in events) == len(slices)


def test_the_rules_refuse_what_perfetto_would_misread() -> None:
    whole = encode(Trace(slices=(piece(0, 1), piece(0.5, 0.1))))
    with pytest.raises(ValidationError):
        events_of(whole.replace('"dur":', '"duration":'))
    with pytest.raises(AssertionError, match="crosses"):
        events_of(whole.replace('"dur":100000.0', '"dur":900000.0'))
    with pytest.raises(ValidationError):
        events_of(whole.replace('"name":"thread_name"', '"name":"thread_sort_index"'))
