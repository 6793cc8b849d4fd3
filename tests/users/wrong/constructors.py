"""Wrong arguments of constructors. The comment has the rule of pyright, then the code of mypy."""

import modulax as mx
from modulax import schedules

mx.AdamW("abc")  # wrong: reportArgumentType, arg-type
mx.AdamW(None)  # wrong: reportArgumentType, arg-type
mx.AdamW({"learning_rate": 1e-3})  # wrong: reportArgumentType, arg-type
mx.AdamW([1e-3])  # wrong: reportArgumentType, arg-type
mx.AdamW(1e-3, b1="0.9")  # wrong: reportArgumentType, arg-type
mx.AdamW(1e-3, b1=(0.9, 0.999))  # wrong: reportArgumentType, arg-type
mx.AdamW(1e-3, lr=1e-3)  # wrong: reportCallIssue, call-arg
mx.AdamW(1e-3, betas=(0.9, 0.999))  # wrong: reportCallIssue, call-arg
mx.AdamW(1e-3, mu_dtype=16)  # wrong: reportArgumentType, arg-type
mx.AdamW(1e-3, nesterov="yes")  # wrong: reportArgumentType, arg-type
mx.AdamW(mx.Adam(1e-3))  # wrong: reportArgumentType, arg-type
mx.AdamW(mx.ReduceOnPlateau())  # wrong: reportArgumentType, arg-type
mx.SGD(0.1, momentum="heavy")  # wrong: reportArgumentType, arg-type
mx.SGD(0.1, 0.9, True, None, None, 3)  # wrong: reportCallIssue, call-arg
mx.Scale("2")  # wrong: reportArgumentType, arg-type
mx.ClipByGlobalNorm(None)  # wrong: reportArgumentType, arg-type
mx.ScaleByAdam(b3=0.9)  # wrong: reportCallIssue, call-arg
mx.MultiSteps(mx.AdamW(1e-3), k=4)  # wrong: reportCallIssue, call-arg
schedules.CosineDecay("1e-3", 100)  # wrong: reportArgumentType, arg-type
schedules.CosineDecay(1e-3, steps=100)  # wrong: reportCallIssue, call-arg
schedules.Linear(0.0, 1.0, None)  # wrong: reportArgumentType, arg-type
schedules.PiecewiseConstant(1.0, [10, 20])  # wrong: reportArgumentType, arg-type
mx.adamw(1e-3)  # wrong: reportAttributeAccessIssue, attr-defined
mx.AdamW()  # wrong: reportCallIssue, call-arg
mx.SGD(momentum=0.9)  # wrong: reportCallIssue, call-arg
mx.ScaleByLearningRate()  # wrong: reportCallIssue, call-arg
mx.AdamW(b1=0.9, weight_decay=0.1)  # wrong: reportCallIssue, call-arg
mx.DPSGD(0.1, 1.0)  # wrong: reportCallIssue, call-arg
schedules.CosineDecay(1e-3)  # wrong: reportCallIssue, call-arg
schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=10)  # wrong: reportCallIssue, call-arg
schedules.Linear(0.0, transition_steps=10)  # wrong: reportCallIssue, call-arg
