"""The CUDA allocator's history: record it, read it and summarize it."""
