"""Measurements in JSON files that also name their device, software and source code."""
