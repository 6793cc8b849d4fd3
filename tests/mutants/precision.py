"""Faults in mixed precision: masters, stochastic rounding, loss scaling, and the warning of `init`."""

from ._mutant import Mutant

TESTS = ("tests/test_mixed_precision.py",)


def _mutant(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, "precision", f"{file}.py", old, new, TESTS)


MUTANTS = (
    _mutant(
        "the-master-is-not-what-is-rounded",
        "_containers/master_weights",
        "return step, lax.add(start, step).astype(m.dtype)",
        "return step, end.astype(m.dtype)",
    ),
    _mutant(
        "the-update-of-a-master-is-rounded",
        "_containers/master_weights",
        "    return step, lax.add(start, step)",
        "    return step.astype(p.dtype).astype(dtype), lax.add(start, step)",
    ),
    _mutant(
        "an-infinite-parameter-becomes-nan",
        "_containers/master_weights",
        "jnp.where(jnp.isfinite(start), end - start, 0)",
        "end - start",
    ),
    _mutant(
        "a-changed-parameter-is-overruled",
        "_containers/master_weights",
        "jnp.where(same_bits(m.astype(p.dtype), p), m, p.astype(m.dtype))",
        "m",
    ),
    _mutant(
        "masters-forget-small-steps",
        "_containers/master_weights",
        "jnp.where(same_bits(m.astype(p.dtype), p), m, p.astype(m.dtype))",
        "p.astype(m.dtype)",
    ),
    _mutant(
        "functions-get-the-masters",
        "_containers/master_weights",
        "**extra_inside(extra, updates, down, up)",
        "**extra",
    ),
    _mutant(
        "float32-has-masters",
        "_containers/master_weights",
        "return copy_in(p, self.dtype) if is_narrower(p.dtype, self.dtype) else None",
        "return copy_in(p, self.dtype)",
    ),
    _mutant(
        "the-evaluation-parameters-of-masters-are-the-parameters",
        "_containers/master_weights",
        'return in_dtypes_of(params, tree, "MasterWeights.eval_params")',
        'return in_dtypes_of(params, params, "MasterWeights.eval_params")',
    ),
    _mutant("the-two-zeros-differ", "_support/arithmetic", "return (a == b) | (((a | b) << 1) == 0)", "return a == b"),
    _mutant(
        "zeros-for-masters-are-positive",
        "_protocol/transform",
        "lambda zero, x: -zero.astype(x.dtype)",
        "lambda zero, x: zero.astype(x.dtype)",
    ),
    _mutant(
        "accumulated-masters-are-rounded",
        "_containers/multi_steps",
        "apply(jtu.tree_map(lambda u, z: u.astype(z.dtype), new, zeros))",
        "apply(jtu.tree_map(lambda u, g, z: u.astype(g.dtype).astype(z.dtype), new, updates, zeros))",
    ),
    _mutant(
        "rounding-cuts-off",
        "_containers/stochastic_rounding",
        "lax.bitwise_and(bits + noise, jnp.full_like(bits, 0xFFFF0000))",
        "lax.bitwise_and(bits, jnp.full_like(bits, 0xFFFF0000))",
    ),
    _mutant(
        "subnormal-numbers-are-spaced-like-others",
        "_containers/stochastic_rounding",
        "jnp.maximum(power, info.smallest_normal.astype(jnp.float32))",
        "jnp.maximum(power, 1e-30)",
    ),
    _mutant(
        "rounding-overflows",
        "_containers/stochastic_rounding",
        "return jnp.clip(near, -largest, largest)",
        "return near + 0 * largest",
    ),
    _mutant(
        "the-key-of-rounding-stays",
        "_containers/stochastic_rounding",
        "StochasticRoundingState(kept, inner_state)",
        "StochasticRoundingState(state.rng_key, inner_state)",
    ),
    _mutant(
        "float32-is-rounded",
        "_containers/stochastic_rounding",
        "_way(u, p, k) if is_narrower(p.dtype, jnp.float32) else u",
        "_way(u, p.astype(jnp.bfloat16), k)",
    ),
    _mutant(
        "gradients-stay-scaled",
        "_containers/loss_scaling",
        "return g.astype(dtype) / scale.astype(real_dtype(dtype)).astype(dtype)",
        "return g.astype(dtype)",
    ),
    _mutant(
        "a-skipped-step-changes-the-inner-state",
        "_containers/loss_scaling",
        "choose(is_finite, new_inner_state, state.inner_state)",
        "new_inner_state",
    ),
    _mutant(
        "the-scale-grows-a-step-late",
        "_containers/loss_scaling",
        "n.astype(scale.dtype) >= self",
        "n.astype(scale.dtype) > self",
    ),
    _mutant("the-scale-becomes-infinite", "_containers/loss_scaling", "is_due & jnp.isfinite(grown)", "is_due"),
    _mutant(
        "the-scale-becomes-zero",
        "_containers/loss_scaling",
        "jnp.maximum(scale * self.backoff_factor, jnp.finfo(scale.dtype).tiny)",
        "scale * self.backoff_factor",
    ),
    _mutant(
        "the-tracker-survives-a-skipped-step",
        "_containers/loss_scaling",
        "jnp.where(is_finite & jnp.logical_not(is_due), n, 0)",
        "jnp.where(jnp.logical_not(is_due), n, 0)",
    ),
    _mutant(
        "skipped-steps-are-not-counted",
        "_containers/loss_scaling",
        "jnp.where(is_finite, state.skipped_steps, safe_increment(state.skipped_steps))",
        "state.skipped_steps",
    ),
    _mutant("a-lost-step-is-half-as-large", "_protocol/resolution", "math.log2(2 * rate", "math.log2(rate"),
    _mutant(
        "frozen-leaves-are-warned-of",
        "_protocol/resolution",
        "if frozen := transform.freezes(tree):",
        "if frozen := ():",
    ),
    _mutant(
        "traced-calls-warn",
        "_protocol/boundary",
        " and not isinstance(x, Tracer) for x in leaves)",
        " for x in leaves)",
    ),
)
