"""What the rooms outside the core use of it, beside public names and `modulax.authoring`.

The rooms of functions and the edges (`sweeps`, `checkpoint`, `losses`, ...) import nothing else of the core, so that a
name that is not here can change with the core alone. Functions of arrays, such as `losses`, take some names of
`authoring` from here, because it loads containers.
"""
