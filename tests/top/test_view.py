"""What a frame looks like: it fits, it sorts, it filters, and it says what is wrong."""

import pytest
from rich.cells import cell_len

from kvdiag.model.top import ExporterState, FindingRow, PairRow, PortRow, TopDocument
from kvdiag.top import units
from kvdiag.top.state import VIEWS, State
from kvdiag.top.tables import NICS, PAIRS, TABLES, arranged
from kvdiag.top.view import draw

HEAD = {"version": "0", "host": "h", "time": "2026-01-01T12:00:00.000Z"}
GOOD = ExporterState(url="http://a:1", state="fresh", data_age_s=0.2, window_s=30)


def pair(number: int, p99_s: float | None = None, **more: object) -> PairRow:
    return PairRow(
        prefill_node=f"prefill-{number}", decode_node="decode-0", direction="pull", transfer_p99_s=p99_s, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def document(**parts: object) -> TopDocument:
    empty: dict[str, object] = {
        "exporters": (GOOD,), "pairs": (), "engines": (), "ports": (), "registration": (), "queue_pairs": (),
        "findings": (), "causes": {},
    }  # fmt: skip
    return TopDocument(**HEAD, **(empty | parts))  # type: ignore[arg-type]


def shown(found: TopDocument, state: State | None = None, width: int = 120, height: int | None = 40) -> list[str]:
    lines = draw(found, state or State(), width=width, height=height, interval_s=2.0)
    return [line.plain for line in lines]


MANY = document(
    pairs=tuple(pair(number, 0.01 * number, transfers=3.0) for number in range(30)),
    ports=tuple(PortRow(node="n", device=f"mlx5_{number}", port="1", up=1.0) for number in range(8)),
    findings=(FindingRow(severity="critical", code="EXP001", node="n", subject="m", summary="too much " * 20),),
    causes={"fabric.loss": 0.61},
)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 10, 24, 60])
@pytest.mark.parametrize("view", VIEWS)
def test_a_frame_fits_any_terminal(width: int, height: int, view: str) -> None:
    lines = shown(MANY, State(view=view), width, height)
    assert 1 <= len(lines) <= height
    assert max(cell_len(line) for line in lines) <= width
    if height >= 5 and view in ("overview", "pairs"):
        assert any("prefill-" in line or "29" in line for line in lines)


@pytest.mark.parametrize("name", TABLES)
def test_no_two_columns_of_a_table_have_one_name(name: str) -> None:
    heads = [column.title for column in TABLES[name].columns]
    assert len(set(heads)) == len(heads)


def test_what_a_port_sends_and_receives_is_told_apart_on_the_narrowest_terminal() -> None:
    port = PortRow(node="node-1", device="mlx5_0", port="1", up=1.0, transmit_ratio=0.9, receive_ratio=0.1)
    text = "\n".join(shown(document(ports=(port,)), State(view="NICs"), width=40))
    assert "sent/link" in text and "received/link" in text


@pytest.mark.parametrize(("window_s", "said"), [
    (30.04, "rates over 30 s"), (0.5, "rates over 0.5 s"), (None, "rates come with the second reading"),
])  # fmt: skip
def test_the_time_that_rates_are_over_is_told(window_s: float | None, said: str) -> None:
    state = ExporterState(url="http://a:1", state="fresh", data_age_s=0.2, window_s=window_s)
    assert said in shown(document(exporters=(state,)))[0]


def test_help_fits_too() -> None:
    assert len(shown(MANY, State(help=True), 40, 5)) == 5
    assert any("quit" in line for line in shown(MANY, State(help=True)))


def test_the_slowest_pair_comes_first_and_what_is_not_observed_last() -> None:
    rows = document(pairs=(pair(0), pair(1, 0.1), pair(2, 0.3), pair(3, 0.2)))
    order = [row.prefill_node[-1] for row in arranged(PAIRS, rows, None, False, "")]
    assert order == ["2", "3", "1", "0"]
    order = [row.prefill_node[-1] for row in arranged(PAIRS, rows, None, True, "")]
    assert order == ["1", "3", "2", "0"]
    order = [row.prefill_node[-1] for row in arranged(PAIRS, rows, 0, False, "")]
    assert order == ["0", "1", "2", "3"]


def test_a_filter_wants_all_its_words_in_any_column() -> None:
    assert [row.device for row in arranged(NICS, MANY, None, False, "UP mlx5_3")] == ["mlx5_3"]
    assert arranged(NICS, MANY, None, False, "up mlx5_9") == []
    assert any("Esc clears the filter" in line for line in shown(MANY, State(view="NICs", filter="nothing")))


def test_a_port_that_loses_packets_comes_before_busier_ones_and_interfaces_last() -> None:
    rows = document(
        ports=(
            PortRow(node="n", device="eth0", port="", transmit_ratio=0.9),
            PortRow(node="n", device="idle", port="1", transmit_ratio=0.0, retransmits_per_s=0.0),
            PortRow(node="n", device="busy", port="1", receive_ratio=0.8),
            PortRow(node="n", device="sick", port="1", transmit_ratio=0.1, retransmits_per_s=3.0),
        )
    )
    assert [row.device for row in arranged(NICS, rows, None, False, "")] == ["sick", "busy", "idle", "eth0"]


def test_no_traffic_and_not_observed_are_told_apart() -> None:
    rows = document(pairs=(pair(0, None, transfers=0.0), pair(1, None)))
    lines = shown(rows, State(view="pairs"))
    (idle,) = [line for line in lines if "prefill-0" in line]
    (unseen,) = [line for line in lines if "prefill-1" in line]
    assert units.NONE in idle.split()
    assert units.NONE not in unseen.split()
    assert units.UNSEEN in unseen.split()


def test_exporters_in_trouble_are_named_with_the_age_of_their_data() -> None:
    gone = ExporterState(url="http://b:1", state="failed", data_age_s=44.0, trouble=("Connection refused",))
    again = ExporterState(url="http://c:1", state="fresh", data_age_s=0.1, restarts=1)
    lines = shown(document(exporters=(GOOD, gone, again)))
    assert "2 of 3 exporters answer" in lines[0]
    assert lines[1].split() == ["http://b:1", "Connection", "refused;", "data", "44", "s", "old"]
    assert lines[2].split() == ["http://c:1", "restarted", "1", "time"]
    assert "a:1" not in "".join(lines)


def test_a_label_steers_no_terminal() -> None:
    evil = PairRow(prefill_node="\x1b[2J\n\u202ep", decode_node="d", direction="pull")
    text = "\n".join(shown(document(pairs=(evil,)), State(view="pairs")))
    assert "\x1b" not in text
    assert "\\x1b[2J\\x0a\\x202ep" in text


def test_paused_and_typing_are_seen() -> None:
    assert "PAUSED" in shown(MANY, State(paused=True))[0]
    assert "filter: ab" in shown(MANY, State(typing=True, filter="ab"))[-1]
    assert "fabric.loss 61 %" in "\n".join(shown(MANY))


def test_scrolling_shows_the_last_rows_and_no_further() -> None:
    lines = shown(MANY, State(view="pairs", offset=10**9), 120, 12)
    assert any(line.split()[:3] == ["prefill-0", "→", "decode-0"] for line in lines)
    assert any("of 30" in line for line in lines)


def test_every_view_has_a_table_and_a_reason_to_be_empty() -> None:
    assert {"overview", *TABLES} == set(VIEWS)
    for name, table in TABLES.items():
        assert table.empty in "\n".join(shown(document(), State(view=name)))


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.seconds, 4.12e-4, "412 µs"), (units.seconds, 0.0091, "9.10 ms"), (units.seconds, 2.4, "2.40 s"),
        (units.seconds, 0.0, "0 µs"), (units.rate, 9.31e9, "9.31 GB/s"), (units.rate, 0.0, "0 B/s"),
        (units.size, 999.9e6, "1.00 GB"), (units.bit_rate, 5e10, "400 Gb/s"), (units.per_s, 0.001, "<0.01"),
        (units.per_s, 0.0, "0"), (units.share, 0.305, "30 %"), (units.share, 0.02, "2.0 %"),
        (units.count, 12345.0, "12 345"), (units.age, 44.0, "44 s"), (units.age, None, "never"),
        (units.seconds, None, "?"), (units.rate, None, "?"), (units.share, None, "?"),
    ],
)  # fmt: skip
def test_numbers_as_people_read_them(show: object, value: float | None, text: str) -> None:
    assert show(value) == text  # type: ignore[operator]


GRAVE = document(
    pairs=(pair(0, 0.5, transfers=3.0),),
    findings=(
        FindingRow(
            severity="critical", code="fabric.loss", node="d-0", subject="mlx5_5",
            summary="fabric.loss adds about 31.7 ms to mean TTFT " * 4, action="find where packets are dropped " * 4,
        ),
        FindingRow(severity="warning", code="EXP003", node="d-0", subject="m", summary="a limit is near"),
    ),
    causes={"workload.prompt_length": 0.43, "unexplained": 0.37, "fabric.loss": 0.14},
)  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(40, 12), (40, 6), (80, 24), (200, None)])
def test_a_critical_finding_is_seen_in_every_frame(width: int, height: int | None) -> None:
    assert "1 critical" in shown(GRAVE, width=width, height=height)[0]
    assert "critical" not in shown(document(), width=width, height=height)[0]


def test_the_cause_that_a_finding_names_comes_first() -> None:
    (line,) = [line for line in shown(GRAVE, width=60) if line.startswith("TTFT varies")]
    assert line.startswith("TTFT varies with  fabric.loss 14 %, workload.prompt_length ")


def test_findings_are_told_whole_in_their_own_view() -> None:
    lines = shown(GRAVE, State(view="findings"), width=60, height=40)
    text = " ".join(" ".join(lines).split())
    assert "critical fabric.loss d-0 mlx5_5 adds about 31.7 ms" in text
    assert text.count("find where packets are dropped") == 4 and "→ find" in text
    assert "warning EXP003 d-0 m a limit is near" in text
    assert all(len(line) <= 60 for line in lines)
    short = shown(GRAVE, State(view="findings"), width=60, height=12)
    assert len(short) == 12 and any("2 findings" in line for line in short)
    assert any("EXP003" in line for line in shown(GRAVE, State(view="findings", offset=1), width=60, height=12))
