"""What the times of attention's passes say of who was measured: the GPU, or the host
that it waits for.
"""

# Both passes together over the sum of each by itself.
WAITS = 1.1


def passes_wait(forward: float, backward: float, both: float) -> bool:
    """Whether both passes together take clearly longer than one and then the other, as
    the GPU's work does not.
    """
    return both > WAITS * (forward + backward)
