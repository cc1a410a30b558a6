"""The live view: exporters are read in `poll`, turned into rows by pure functions, and drawn on the terminal."""
