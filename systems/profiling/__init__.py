"""Profiles of a step: its kernels, launches and phases, and its memory."""
