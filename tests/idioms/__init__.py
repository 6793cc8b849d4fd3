"""Idioms of programs that were written for optax: small functions of the module, which return what they see.

The modules of this package fill the table, `_table.IDIOMS`.
"""
