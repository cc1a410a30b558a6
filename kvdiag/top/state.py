"""What the person at the keys has chosen, and what each key changes."""

from dataclasses import dataclass, field, replace

VIEWS = ("overview", "pairs", "engines", "NICs", "registration", "queue pairs", "findings")

HELP = (
    ("1 … 7, Tab", "overview, pairs, engines, NICs, registration, queue pairs, findings"),
    ("s, S, r", "sort by the next column, the one before; reverse"),
    ("/", "filter: rows with all the words; Enter keeps it, Esc clears it"),
    ("↑ ↓ PgUp PgDn", "scroll; also k and j, Home and End"),
    ("p, Space", "pause and go on"),
    ("h, ?", "this help"),
    ("q", "quit"),
)


@dataclass(frozen=True, slots=True)
class State:
    """`sort` is a column of each view (None: its own order), `offset` the first row shown, `typing` a filter."""

    view: str = VIEWS[0]
    sort: dict[str, int] = field(default_factory=dict)
    reverse: frozenset[str] = frozenset()
    filter: str = ""
    offset: int = 0
    typing: bool = False
    paused: bool = False
    help: bool = False
    quit: bool = False


def press(state: State, key: str, columns: int, page: int) -> State:
    """Return the state after a key (a character, or a name such as `up`); unknown keys change nothing.

    `columns` is how many columns the view has, `page` how many rows one screen shows.
    """
    if state.typing:
        return _typed(state, key)
    if state.help:
        return replace(state, help=False, quit=key == "q")
    if key.isdigit() and 1 <= int(key) <= len(VIEWS):
        return replace(state, view=VIEWS[int(key) - 1], offset=0)
    if key in ("tab", "right", "back-tab", "left"):
        step = 1 if key in ("tab", "right") else -1
        return replace(state, view=VIEWS[(VIEWS.index(state.view) + step) % len(VIEWS)], offset=0)
    if key in ("s", "S") and columns:
        now = state.sort.get(state.view)
        step = 1 if key == "s" else -1
        chosen = (0 if step > 0 else columns - 1) if now is None else (now + step) % columns
        return replace(state, sort={**state.sort, state.view: chosen}, reverse=state.reverse - {state.view}, offset=0)
    if key == "r":
        return replace(state, reverse=state.reverse ^ {state.view}, offset=0)
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -page, "page-down": page, "home": -(10**9), "end": 10**9}
    if key in moves:
        return replace(state, offset=max(0, state.offset + moves[key]))
    if key == "/":
        return replace(state, typing=True, filter="")
    if key == "escape":
        return replace(state, filter="", offset=0)
    if key in ("p", " "):
        return replace(state, paused=not state.paused)
    if key in ("h", "?"):
        return replace(state, help=True)
    return replace(state, quit=True) if key in ("q", "Q") else state


def _typed(state: State, key: str) -> State:
    if key == "enter":
        return replace(state, typing=False, offset=0)
    if key == "escape":
        return replace(state, typing=False, filter="", offset=0)
    if key == "backspace":
        return replace(state, filter=state.filter[:-1])
    if len(key) == 1 and key.isprintable() and len(state.filter) < 100:
        return replace(state, filter=state.filter + key, offset=0)
    return state
