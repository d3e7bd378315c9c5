"""Other simulators beside ours: the same requests, the same run, CPU time per request.

Not a comparison of what is simulated: each side keeps its own step times and scheduler.
"""
