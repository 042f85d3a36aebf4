"""Make tests a package, so that the course's test file can import `adapters`."""
