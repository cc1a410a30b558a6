"""What was measured between a peer and the host that judges it: kept with a copied tree, else made by the command."""

import msgspec

from kvdiag.model.missing import Missing
from kvdiag.model.pair import PairMeasurements
from kvdiag.sources._command import output
from kvdiag.sources.base import Context


class PairSource:
    """`kvdiag preflight --peer` puts its measurements here; a copied tree keeps them in `commands/kvdiag-pair.txt`."""

    part = PairMeasurements

    def read(self, context: Context) -> PairMeasurements | Missing:
        if context.live:
            return Missing("nothing was measured: name this host with --peer HOST:PORT")
        text = output(context, "kvdiag-pair", ())
        if isinstance(text, Missing):
            return text
        try:
            return msgspec.json.decode(text.text, type=PairMeasurements)
        except msgspec.MsgspecError as error:
            return Missing(f"{text.origin} cannot be read: {error}")


SOURCE = PairSource()
