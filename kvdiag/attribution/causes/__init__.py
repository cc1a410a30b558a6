"""One file per cause, named after its id; each has a CAUSE object and is found by walking this folder."""
