"""Active measurements: RDMA and TCP probes, and the workload of the demonstration."""
