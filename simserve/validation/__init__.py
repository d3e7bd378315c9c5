"""How far the simulator can be trusted: replays of engines' logs, measured runs and published results."""
