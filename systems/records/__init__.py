"""Measurements as files, with the code, software and machine that they came from."""
