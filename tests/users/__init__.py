"""Small scripts as users write them, for the type checkers: `right` has no error, `wrong` one where a comment says so.

`python -m tests.users` runs pyright and mypy over both folders, and the scripts of `right` themselves.
"""
