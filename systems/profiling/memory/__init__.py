"""What holds memory: the allocator's history recorded, read and summed up."""
