"""One file per program whose log lines tell of requests: LITERALS that stand in such a line, `read(line, now_s)`."""
