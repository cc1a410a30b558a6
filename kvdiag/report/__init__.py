"""One file per output form; computes nothing."""
