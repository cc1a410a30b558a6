"""The only code that opens files, sockets, devices or processes; one file per origin; a source never judges."""
