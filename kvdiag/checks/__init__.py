"""One .py and one .md per check, found by walking this folder; a check never does I/O."""
