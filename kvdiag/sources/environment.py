"""The transport variables of the environment that kvdiag was started with."""

import os
import re
from collections.abc import Iterable

from kvdiag.model.missing import Missing
from kvdiag.model.serving import ENVIRONMENT_NAMES, Environment, Variable
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

_VARIABLE = re.compile(r"^\w+=", re.MULTILINE)


class EnvironmentSource:
    """Only the names of ENVIRONMENT_NAMES leave this file; a copied tree keeps them in `commands/env.txt`."""

    part = Environment

    def read(self, context: Context) -> Environment | Missing:
        if context.environ is not None:
            return Environment(variables=chosen(dict(context.environ).items()), origin="the given environment")
        if context.live:
            return Environment(variables=chosen(os.environ.items()), origin="kvdiag's own environment")
        text = output(context, "env", ("env",), _VARIABLE)
        if isinstance(text, Missing):
            return text
        pairs = (line.split("=", 1) for line in text.text.splitlines() if "=" in line)
        return Environment(variables=chosen((name, value) for name, value in pairs), origin=text.origin)


def chosen(pairs: Iterable[tuple[str, str]]) -> tuple[Variable, ...]:
    """Return the whitelisted variables, sorted by name."""
    return tuple(Variable(name=name, value=value) for name, value in sorted(pairs) if name in ENVIRONMENT_NAMES)


SOURCE = EnvironmentSource()
