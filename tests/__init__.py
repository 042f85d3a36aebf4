"""A package, so that the course's test file can import its adapters from beside it."""
