"""Projections: the nearest point of a set, for arrays and for trees of them."""
