"""simserve: a trace-driven discrete-event simulator of LLM serving systems."""

__version__ = "0.1.0"
