"""Number formats, and the dtypes in which each operation computes."""
