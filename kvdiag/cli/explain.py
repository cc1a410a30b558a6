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
    if page is None:
        family = sorted(
            name for name in pages if name.startswith(code.upper().rstrip("0123456789")) and code[:1].isalpha()
        )
        hint = f"this family has {', '.join(family)}" if family else "kvdiag explain --list shows all of them"
        if "." in code:
            hint = "causes such as this are explained by kvdiag diagnose --explain and docs/diagnose.md"
        if code.startswith("KV") and code.isalnum() and not code.isupper():
            hint = f"the runbook of an alert is docs/runbooks/{code}.md, its runbook_url"
        raise UsageError(f"CODE: no check is called {code!r}; {hint}")
    text = page.read_text()
    console = stdout()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        console.print(text, markup=False)
