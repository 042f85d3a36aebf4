"""The history of the CUDA allocator: record it, read it and summarize it."""
