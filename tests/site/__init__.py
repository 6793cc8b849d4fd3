"""The built documentation in a browser: `nox -s site` runs these tests, and `nox -s tests` does not."""
