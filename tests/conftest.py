"""Settings of all tests: the same examples everywhere, and no clock decides."""

from hypothesis import settings

settings.register_profile("simserve", deadline=None, derandomize=True)
settings.load_profile("simserve")
