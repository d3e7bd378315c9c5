"""Pages of studies: sweeps, sizes and capacities."""
