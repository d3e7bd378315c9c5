"""Deployments: what is built from a scenario, from its pools' plans to the parts that the event loop runs."""
