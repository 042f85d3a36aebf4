"""Number formats, and who computes in which."""
