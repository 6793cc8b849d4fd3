"""Faults in the dtypes of states: fields that an optimizer hands on, and moments of narrow parameters."""

from ._mutant import Mutant

LAW = ("tests/test_state_dtypes.py",)


def dropped(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(f"{name}-dropped", "dtype field", f"_optimizers/{file}.py", old, new, LAW)


FIELDS = (
    dropped(
        "adam-mu-dtype",
        "adam",
        "self.mu_dtype, self.nesterov),\n            ScaleByLearningRate",
        "None, self.nesterov),\n            ScaleByLearningRate",
    ),
    dropped(
        "nadam-mu-dtype",
        "adam",
        "self.mu_dtype, nesterov=True),\n            ScaleByLearningRate",
        "None, nesterov=True),\n            ScaleByLearningRate",
    ),
    dropped(
        "adamw-mu-dtype",
        "adam",
        "self.mu_dtype, self.nesterov),\n            AddDecayedWeights",
        "None, self.nesterov),\n            AddDecayedWeights",
    ),
    dropped(
        "nadamw-mu-dtype",
        "adam",
        "self.mu_dtype, nesterov=True),\n            AddDecayedWeights",
        "None, nesterov=True),\n            AddDecayedWeights",
    ),
    dropped("ademamix-mu-dtype", "ademamix", "self.eps_root, self.mu_dtype)", "self.eps_root)"),
    dropped("adopt-mu-dtype", "adopt", "            self.mu_dtype,\n", "            None,\n"),
    dropped("amsgrad-mu-dtype", "amsgrad", "                self.mu_dtype,\n", "                None,\n"),
    dropped("lion-mu-dtype", "lion", "ScaleByLion(self.b1, self.b2, self.mu_dtype)", "ScaleByLion(self.b1, self.b2)"),
    dropped("muon-mu-dtype", "muon", "                self.mu_dtype,\n", "                None,\n"),
    dropped(
        "muon-adam-mu-dtype",
        "muon",
        "mu_dtype=self.mu_dtype,\n            weight_decay=self.adam_weight_decay,",
        "mu_dtype=None,\n            weight_decay=self.adam_weight_decay,",
    ),
    dropped("optimistic-adam-mu-dtype", "optimistic", "self.mu_dtype, self.nesterov)", "None, self.nesterov)"),
    dropped("sophia-mu-dtype", "sophia", "            self.mu_dtype,\n", "            None,\n"),
    dropped(
        "sgd-accumulator-dtype",
        "sgd",
        "Trace(self.momentum, self.nesterov, self.accumulator_dtype)",
        "Trace(self.momentum, self.nesterov)",
    ),
    dropped(
        "signum-accumulator-dtype",
        "signsgd",
        "debias=False, accumulator_dtype=self.accumulator_dtype)",
        "debias=False)",
    ),
    dropped(
        "adafactor-dtype-momentum",
        "adafactor",
        "Ema(self.momentum, False, self.dtype_momentum)",
        "Ema(self.momentum, False)",
    ),
    dropped(
        "schedule-free-sgd-state-dtype",
        "schedule_free",
        "steps = Chain(*decay, ScaleByLearningRate(rate))\n"
        "        return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, self.state_dtype, follow=self.follow)",
        "steps = Chain(*decay, ScaleByLearningRate(rate))\n"
        "        return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, follow=self.follow)",
    ),
    dropped(
        "schedule-free-adamw-state-dtype",
        "schedule_free",
        "return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, self.state_dtype, follow=begins)",
        "return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, follow=begins)",
    ),
)

NARROW = "moment dtype"
MUTANTS = (
    *FIELDS,
    Mutant(
        "ademamix-slow-mean-in-the-dtype-of-the-parameter",
        "dtype field",
        "_transforms/ademamix.py",
        "m1, m2 = (zeros_in(p, self.mu_dtype) for _ in range(2))",
        "m1, m2 = zeros_in(p, self.mu_dtype), jnp.zeros_like(p)",
        LAW,
    ),
    Mutant(
        "sophia-mean-in-the-dtype-of-the-parameter",
        "dtype field",
        "_transforms/sophia.py",
        "return _Direction(self.b1, self.eps, self.gamma, self.clip_threshold, self.mu_dtype, corrects)",
        "return _Direction(self.b1, self.eps, self.gamma, self.clip_threshold, None, corrects)",
        LAW,
    ),
    Mutant(
        "novograd-mean-in-the-dtype-of-the-parameter",
        "dtype field",
        "_transforms/novograd.py",
        "mu=zeros_in(p, self.mu_dtype)",
        "mu=jnp.zeros_like(p)",
        LAW,
    ),
    Mutant(
        "squares-in-the-dtype-of-the-parameter",
        NARROW,
        "_support/arithmetic.py",
        "return jnp.full_like(p, value, at_least_float32(real_dtype(p.dtype)))",
        "return jnp.full_like(p, value, real_dtype(p.dtype))",
        LAW,
    ),
    Mutant(
        "amsgrad-maximum-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/amsgrad.py",
        "nu_max=second_moment_like(p)",
        "nu_max=jnp.zeros_like(p)",
        (*LAW, "tests/test_contract.py -k 'AMSGrad and (dtype or precision)'"),
    ),
    Mutant(
        "novograd-square-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/novograd.py",
        "nu = jnp.zeros((), at_least_float32(real_dtype(p.dtype)))",
        "nu = jnp.zeros((), real_dtype(p.dtype))",
        LAW,
    ),
    Mutant(
        "madgrad-sum-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/madgrad.py",
        "s = jnp.zeros_like(p, at_least_float32(p.dtype))",
        "s = jnp.zeros_like(p)",
        LAW,
    ),
    Mutant(
        "stddev-mean-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/rmsprop.py",
        "dtype = at_least_float32(p.dtype)",
        "dtype = p.dtype",
        (*LAW, "tests/test_contract.py -k 'ScaleByStddev and (dtype or precision)'"),
    ),
    Mutant(
        "rprop-step-sizes-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/rprop.py",
        "dtype = at_least_float32(p.dtype)",
        "dtype = p.dtype",
        LAW,
    ),
    Mutant(
        "gradient-sums-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/distance_estimate.py",
        "return zeros_in(p, at_least_float32(p.dtype))",
        "return zeros_in(p, None)",
        LAW,
    ),
    Mutant(
        "apply-every-sums-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/momentum.py",
        "ApplyEveryState(grad_acc=zeros_in(p, at_least_float32(p.dtype)))",
        "ApplyEveryState(grad_acc=jnp.zeros_like(p))",
        LAW,
    ),
    Mutant(
        "distance-of-layers-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/distance_over_gradients.py",
        "wide = at_least_float32(real_dtype(p.dtype))",
        "wide = real_dtype(p.dtype)",
        LAW,
    ),
    Mutant(
        "lbfgs-gradient-in-the-dtype-of-the-parameter",
        NARROW,
        "_transforms/lbfgs.py",
        "jtu.tree_map(lambda p: jnp.zeros_like(p, at_least_float32(p.dtype)), params)",
        "jtu.tree_map(jnp.zeros_like, params)",
        LAW,
    ),
    Mutant(
        "schedule-free-points-in-the-dtype-of-the-parameter",
        NARROW,
        "_containers/schedule_free.py",
        "self.state_dtype or at_least_float32(p.dtype)",
        "self.state_dtype or p.dtype",
        LAW,
    ),
    Mutant(
        "multisteps-sums-in-the-dtype-of-the-parameter",
        NARROW,
        "_containers/multi_steps.py",
        "return at_least_float32(p.dtype) if self.accumulator_dtype is None else self.accumulator_dtype",
        "return self.accumulator_dtype",
        LAW,
    ),
    Mutant(
        "mechanic-way-in-the-dtype-of-the-parameter",
        NARROW,
        "_containers/mechanize.py",
        "zeros_in(p, at_least_float32(p.dtype))",
        "zeros_in(p, None)",
        LAW,
    ),
)
