"""The documentation as a site: `make docs`. Not a part of the package."""
