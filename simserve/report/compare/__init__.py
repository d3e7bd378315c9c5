"""The page of a scenario with variants: what differs, and by how much."""
