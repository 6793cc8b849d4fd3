"""Second derivatives of a loss, without the matrix that they are in."""
