"""Estimators: the gradient of an expectation with respect to what is drawn from."""
