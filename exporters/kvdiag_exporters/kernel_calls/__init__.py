"""How long the kernel takes to register memory and to set up queue pairs: kprobes and their histograms in tracefs."""
