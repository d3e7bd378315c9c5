"""Stand-ins for what this machine lacks: a GPU's events and graphs (`gpu`), and the kernel libraries.

The libraries, one module each, have the argument names and layouts of the releases named in them, and compute
in float64.
"""
