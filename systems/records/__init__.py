"""Measurements as files: where they come from, by which code, on which machine."""
