"""`kvdiag explain CODE`: the check's own page."""

from typing import Annotated

import typer

from kvdiag.cli._output import stdout


def register(app: typer.Typer) -> None:
    app.command()(explain)


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A check's code as findings print it, for example GID001.")
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="List every check instead.")] = False,
) -> None:
    """Print a check's own page: what it finds, why it matters, how to confirm it, what to do.

    Example: kvdiag explain GID001
    """
    from importlib import resources

    from rich.markdown import Markdown

    from kvdiag.errors import UsageError

    pages = {
        page.name.partition("_")[0].upper(): page
        for package in ("kvdiag.checks", "kvdiag_exporters.derived")
        for page in resources.files(package).iterdir()
        if page.name.endswith(".md")
    }
    if every:
        for name in sorted(pages):
            typer.echo(pages[name].read_text().partition("\n")[0].removeprefix("# "))
        return
    if code is None:
        raise UsageError("CODE: name a check, for example kvdiag explain GID001, or give --list")
    page = pages.get(code.upper())
    if page is None and "." in code:
        text = _cause(code)
    elif page is not None:
        text = page.read_text()
    else:
        family = sorted(
            name for name in pages if name.startswith(code.upper().rstrip("0123456789")) and code[:1].isalpha()
        )
        hint = f"this family has {', '.join(family)}" if family else "kvdiag explain --list shows all of them"
        if code.startswith("KV") and code.isalnum() and not code.isupper():
            hint = f"the runbook of an alert is docs/runbooks/{code}.md, its runbook_url"
        raise UsageError(f"CODE: no check is called {code!r}; {hint}")
    console = stdout()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        console.print(text, markup=False)


def _cause(code: str) -> str:
    """Return the page of a cause that diagnose may name, made of what its module says; UsageError for no such cause."""
    import inspect

    from kvdiag.cli._output import require
    from kvdiag.errors import UsageError

    require("numpy", "analysis", f"kvdiag explain {code}")
    from kvdiag.attribution.causes.base import discover

    causes = {cause.id: cause for cause in discover()}
    cause = causes.get(code.lower())
    if cause is None:
        family = [name for name in causes if name.startswith(f"{code.lower().partition('.')[0]}.")]
        raise UsageError(f"CODE: no cause is called {code!r}; there are {', '.join(family or causes)}")
    ways = (cause.dose, cause.drivers, cause.load)
    told = [inspect.cleandoc(way.__doc__).removeprefix("Return ") for way in ways if way is not None and way.__doc__]
    told = [text[:1].upper() + text[1:] for text in told]
    way = next(one for one in (*ways, cause.evidence) if one is not None)
    title = inspect.cleandoc(inspect.getmodule(way).__doc__ or cause.id).rstrip(".")
    parts = [f"# {title}", "## What it is judged by", *told]
    if cause.stages:
        parts.append(f"It may add to: {', '.join(cause.stages)}.")
    confirm = (
        "`kvdiag diagnose BUNDLE --explain` shows the numbers step by step; docs/diagnose.md says how they are made."
    )
    return "\n\n".join([*parts, "## How to confirm", confirm, "## What to do", cause.action]) + "\n"
