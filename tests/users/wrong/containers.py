"""Wrong containers: a list for a mapping, a class for an instance, a missing argument.

mypy can't report `optax.adam(...)` in a `Chain`: optax has no types for mypy, so its value is `Any`, which fits
everywhere.
"""

import optax

import modulax as mx

mx.Chain([mx.Clip(1.0), mx.AdamW(1e-3)])  # wrong: reportArgumentType, arg-type
mx.Chain(mx.Clip, mx.AdamW(1e-3))  # wrong: reportArgumentType, arg-type
mx.Chain(mx.Clip(1.0), optax.adam(1e-3))  # wrong: reportArgumentType, -
mx.Chain(mx.Clip(1.0), lambda updates: updates)  # wrong: reportArgumentType, arg-type
mx.Chain(clip=1.0)  # wrong: reportArgumentType, arg-type
mx.Partition([mx.AdamW(1e-3), mx.SGD(0.1)], {"w": 0})  # wrong: reportArgumentType, arg-type
mx.Partition({"a": mx.AdamW, "b": mx.SGD(0.1)}, {"w": "a"})  # wrong: reportArgumentType, dict-item
mx.Partition({"a": mx.AdamW(1e-3)})  # wrong: reportCallIssue, call-arg
mx.Partition({"a": 1e-3}, {"w": "a"})  # wrong: reportArgumentType, dict-item
mx.Partition(transforms={"a": mx.AdamW(1e-3)}, mask={"w": "a"})  # wrong: reportCallIssue, call-arg
mx.Monitor(mx.tree.norm)  # wrong: reportArgumentType, arg-type
mx.Monitor([mx.tree.norm])  # wrong: reportArgumentType, arg-type
mx.Monitor("norm")  # wrong: reportArgumentType, arg-type
mx.MultiSteps(1e-3, 4)  # wrong: reportArgumentType, arg-type
mx.Masked(0.1, {"w": True})  # wrong: reportArgumentType, arg-type
mx.Scheduled(1e-3)  # wrong: reportArgumentType, arg-type
mx.Masked(mx.SGD(1.0))  # wrong: reportCallIssue, call-arg
mx.Masked(mask={"w": True})  # wrong: reportCallIssue, call-arg
mx.MultiSteps(mx.SGD(1.0))  # wrong: reportCallIssue, call-arg
mx.Chain(mx.ClipByGlobalNorm(), mx.SGD(1.0))  # wrong: reportCallIssue, call-arg
mx.Lookahead(mx.SGD(1.0), 5)  # wrong: reportCallIssue, call-arg
