"""What each key does, and how bytes become keys."""

from kvdiag.top.keys import decode
from kvdiag.top.state import VIEWS, State, press


def after(*keys: str, state: State | None = None, columns: int = 5) -> State:
    found = state or State()
    for key in keys:
        found = press(found, key, columns, page=10)
    return found


def test_digits_and_tab_choose_the_view() -> None:
    assert [after(str(place + 1)).view for place in range(len(VIEWS))] == list(VIEWS)
    assert after("tab").view == VIEWS[1]
    assert after("back-tab").view == VIEWS[-1]
    assert after("9") == State()


def test_sorting_goes_round_and_each_view_keeps_its_own() -> None:
    assert after("s").sort == {"overview": 0}
    assert after("2", "s", "s").sort == {"pairs": 1}
    assert after("2", "S").sort == {"pairs": 4}
    assert after("2", "s", "3", "S", "2", "s").sort == {"pairs": 1, "engines": 4}
    assert after("2", *"sssss", "s").sort == {"pairs": 0}
    assert after("2", "r").reverse == {"pairs"}
    assert after("2", "r", "r").reverse == frozenset()


def test_a_filter_is_typed_kept_or_cleared() -> None:
    typing = after("/", *"mlx q1")
    assert (typing.typing, typing.filter, typing.quit) == (True, "mlx q1", False)
    assert after("backspace", "enter", state=typing).filter == "mlx q"
    assert after("escape", state=typing).filter == ""
    kept = after("enter", state=typing)
    assert (kept.typing, kept.filter) == (False, "mlx q1")
    assert after("escape", state=kept).filter == ""


def test_scrolling_stops_at_the_top() -> None:
    assert after("down", "page-down", "up").offset == 10
    assert after("up", "page-up").offset == 0
    assert after("page-down", "2").offset == 0


def test_pause_help_and_quit() -> None:
    assert after("p").paused
    assert not after("p", " ").paused
    assert after("h").help
    assert after("h", "x") == State()
    assert after("h", "q").quit
    assert after("q").quit
    assert after("\x00", "ü") == State()


def test_bytes_become_keys() -> None:
    assert decode(b"q") == ["q"]
    assert decode(b"\x1b[A\x1bOB\x1b[5~x") == ["up", "down", "page-up", "x"]
    assert decode(b"\x1b") == ["escape"]
    assert decode(b"\x1b[200~\x1b[1;5C") == []
    assert decode("ü→".encode()) == ["ü", "→"]
    assert decode(b"\xff\xc3") == ["\ufffd", "\ufffd"]
    assert decode(b"\t\r\x7f\x1b[Z") == ["tab", "enter", "backspace", "back-tab"]
