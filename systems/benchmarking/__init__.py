"""How time is measured: clocks, phases, workloads, the GPU by itself, rivals."""
