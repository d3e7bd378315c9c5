"""Studies of a scenario: sweeps, the capacity of a deployment, the size of a fleet, and searches.

One campaign runs points on an executor and keeps every finished run; what to run next is decided here.
"""
