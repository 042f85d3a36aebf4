"""How time is measured: clocks, phases, the GPU by itself, attention of others beside ours."""
