"""Records: files of measurements, with the code, software and machine they came
from.
"""
