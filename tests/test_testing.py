"""`check_transform`: a good transform passes, and each planted fault breaks the law against it."""

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import jaxtyping
import pytest

import modulax as mx
from modulax.testing import LAWS, Case, check_transform


class HeavyBallState(eqx.Module):
    """One tree of velocities."""

    velocity: Any


class HeavyBall(mx.AbstractLeafwise):
    """A good transform, as an author outside the library writes it."""

    decay: Any = mx.number(0.9)

    def init_leaf(self, p: Any) -> HeavyBallState:
        return HeavyBallState(jnp.zeros(p.shape, p.dtype))

    def update_leaf(self, now: Any, g: Any, s: Any, p: Any) -> Any:
        v = self.decay * s.velocity + g
        return v, HeavyBallState(v)


def test_a_good_transform_passes():
    check_transform(HeavyBall(0.5))


# --- Faults ----------------------------------------------------------------------------------------


class AbstractFaulty(mx.AbstractTransform):
    """A stateless transform of trees, for faults in its `change`."""

    factor: eqx.AbstractVar[Any]

    def init(self, params: Any) -> Any:
        del params
        return mx.EmptyState()

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params, extra
        return jtu.tree_map(self.change, updates), state

    def change(self, g: Any) -> Any:
        return g * self.factor.astype(g.dtype)


class Faulty(AbstractFaulty):
    """Makes of a gradient and of its number what it should not."""

    rule: Callable[[Any, Any], Any] = eqx.field(static=True)
    factor: Any = mx.number(0.5)

    def __init__(self, rule: Any, factor: float = 0.5):
        self.rule, self.factor = rule, factor

    def change(self, g: Any) -> Any:
        return self.rule(g, self.factor)


class Retraced(AbstractFaulty):
    """Its number is part of the program; it is listed all the same."""

    factor: Any = mx.number(0.5)
    flag: float = eqx.field(static=True, default=1.0)

    def replace(self, **changes: Any) -> Any:
        new = AbstractFaulty.replace(self, **changes)
        return Retraced(new.factor, float(new.factor))


class Waiting(AbstractFaulty):
    """Looks at its result before it hands it on, as `eqx.filter_jit` does."""

    factor: Any = mx.number(0.5)


def _update_and_wait(self: Waiting, *args: Any, **kwargs: Any) -> Any:
    return jax.block_until_ready(AbstractFaulty.update(self, *args, **kwargs))


# Set after the class was made: its own `update` would run inside a program, where waiting is impossible.
type.__setattr__(Waiting, "update", _update_and_wait)


@jax.custom_jvp
def _halved(x: Any) -> Any:
    return x / 2


_halved.defjvps(lambda tangent, _, x: tangent)


@jax.custom_batching.custom_vmap
def _product(x: Any, y: Any) -> Any:
    return x * y


@_product.def_vmap
def _product_of_batches(size: Any, batched: Any, x: Any, y: Any) -> Any:
    del size, batched
    return jnp.broadcast_to(x[0] * y, (x.shape[0], *y.shape[-1:])), True


def _one_for_all(g: Any, x: Any) -> Any:
    """In a batch, the number of the first one counts for all."""
    return _product(x.astype(g.dtype), g.reshape(-1)).reshape(g.shape)


class Wrapping(mx.AbstractTransform):
    """A counter that overflows."""

    count: Callable[[Any, Any], Any] = eqx.field(static=True, default=lambda counter, updates: counter + 1)
    shape: tuple[int, ...] = eqx.field(static=True, default=())

    def init(self, params: Any) -> Any:
        del params
        return HeavyBallState(jnp.zeros(self.shape, jnp.int32))

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params, extra
        return updates, HeavyBallState(self.count(state.velocity, updates))


def _skipped(counter: Any, updates: Any) -> Any:
    return counter + (~jnp.isfinite(mx.tree.norm(updates))).astype(jnp.int32)


class Incurious(mx.AbstractTransform):
    """Knows no extra arguments."""

    def init(self, params: Any) -> Any:
        del params
        return mx.EmptyState()

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:  # pyright: ignore
        del params
        return updates, state


class Forgetful(AbstractFaulty):
    """Its `at` makes a new one, and forgets a flag."""

    factor: Any = mx.number(0.5)
    flag: bool = eqx.field(static=True, default=False)

    def at(self, state: Any) -> Any:
        del state
        return Forgetful(self.factor)


class Late(AbstractFaulty):
    """Its `at` is the transform of another step."""

    factor: Any = mx.number(0.5)

    def at(self, state: Any) -> Any:
        del state
        return Late(self.factor / 2)


class Unread(AbstractFaulty):
    """A dtype that nobody asks for."""

    factor: Any = mx.number(0.5)
    accumulator_dtype: Any = eqx.field(static=True, default=None)


class Deaf(mx.AbstractOptimizer):
    """Hands its learning rate on, and not its momentum."""

    learning_rate: Any = mx.number()
    momentum: Any = mx.number(0.9)

    def transform(self) -> Any:
        return mx.Chain(mx.Trace(0.9), mx.ScaleByLearningRate(self.learning_rate))


KEPT, COUNT = "structure_shapes_and_dtypes_are_kept", "counters_saturate"
FAULTS: list[tuple[Any, str, str]] = [
    (Forgetful(flag=True), "at_is_the_transform_of_the_next_step", "`Forgetful.flag` became False"),
    (Late(), "at_is_the_transform_of_the_next_step", "the update of `at(state)`"),
    (Unread(), "a_field_that_is_a_dtype_is_one_of_the_state", "`accumulator_dtype` is the dtype of nothing"),
    (Deaf(0.1), "a_field_of_an_optimizer_is_handed_on", "`momentum` is not handed on"),
    (Faulty(lambda g, x: g.astype(x.dtype) * x), KEPT, "became float32[2]. A number times an array"),
    (Faulty(lambda g, x: jnp.atleast_1d(g)), KEPT, "float32[1]"),
    (
        Wrapping(lambda n, _: n.astype(jnp.float32)),
        KEPT,
        "became float32[]. `modulax.safe_increment(count)`",
    ),
    (Retraced(), "a_changed_number_is_not_traced", "was traced again"),
    (Retraced(), "a_changed_number_is_not_traced_in_your_own_jit", "was traced again"),
    (Faulty(_one_for_all, 0.25), "a_batch_of_transforms_is_a_loop", "a batch of transforms: at"),
    (Waiting(), "update_returns_before_the_result_is_ready", "result was ready"),
    # The derivative of another function; the root of a square, which has none at zero; and no epsilon.
    (Faulty(lambda g, x: _halved(x) * g), "gradients_are_finite_and_right", "finite differences give"),
    (Faulty(lambda g, x: g / (jnp.sqrt(g * g) + x)), "gradients_are_finite_and_right", "nan"),
    (Faulty(lambda g, x: g / jnp.abs(g)), "updates_of_every_size_stay_finite", "nan"),
    # An epsilon that float16 does not hold.
    (Faulty(lambda g, x: g / (jnp.abs(g) + x.astype(g.dtype)), 1e-8), "zeros_are_fine_in_low_precision", "nan"),
    (Faulty(lambda g, x: (g * x).astype(g.dtype)), "strict_promotion_is_obeyed", "promotion"),
    (Faulty(lambda g, x: jnp.where(jnp.imag(g) == 0, g, jnp.nan)), "complex_parameters_work", "nan"),
    (Wrapping(lambda counter, _: counter, (0,)), "state_is_a_module_of_arrays", "shape=(0,)"),
    (Wrapping(), COUNT, "overflowed to -2147483647"),
    (Wrapping(_skipped), COUNT, "write `modulax.safe_increment(count)`"),
    (Incurious(), "unknown_extra_arguments_are_ignored", "unexpected keyword"),
]


def raised(law: str, case: Case) -> Exception | None:
    """The error of a law."""
    try:
        LAWS[law].check(case)
    except Exception as error:
        return error


@functools.cache
def error_of(index: int) -> Exception | None:
    """The error of a law for one of the faults; `test_testing_expectations.py` asks where it was raised."""
    transform, law, _ = FAULTS[index]
    return raised(law, Case(transform))


@pytest.mark.parametrize("index", range(len(FAULTS)), ids=[f"{law}: {says}" for _, law, says in FAULTS])
def test_a_fault_breaks_a_law(index: int):
    assert FAULTS[index][2] in str(error_of(index))


def test_the_report_teaches():
    exempt = dict.fromkeys(LAWS.keys() - {"counters_saturate", "the_repr_can_be_read"}, "not the point here")
    with pytest.raises(AssertionError) as caught:
        check_transform(Wrapping(), exempt=exempt)
    text = str(caught.value)
    assert text.startswith("`Wrapping()` breaks a law")
    assert "Law `counters_saturate`" in text
    assert "A counter stops at the largest integer" in text
    assert "But: the counter at `velocity` overflowed to -2147483647: write" in text
    assert "exempt" in text
    check_transform(Wrapping(), exempt={**exempt, "counters_saturate": "an example of a fault"})


def test_parameters_and_extra_arguments_can_be_given():
    seen = []

    class Valued(mx.AbstractStatelessTransform):
        """Needs `value=`."""

        def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
            seen.append(jtu.tree_structure(params))
            return jtu.tree_map(lambda u: u * extra["value"].astype(u.dtype), updates)

    only = "scan_carries_the_state"
    exempt = LAWS.keys() - {only}
    params = [jnp.ones(2), "no array"]
    with pytest.raises(AssertionError, match="KeyError: 'value'"):
        check_transform(Valued(), params, exempt=exempt)
    seen.clear()
    check_transform(Valued(), params, extra={"value": jnp.asarray(2.0)}, exempt=exempt)
    assert set(seen) == {jtu.tree_structure([0, None])}
    check_transform(Valued(), params, extra=lambda p, u: {"value": jnp.sum(p[0])}, exempt=exempt)


def test_unknown_exemptions_are_refused():
    with pytest.raises(ValueError, match=r"there is no law `counters_saturat`. Did you mean `counters_saturate`"):
        check_transform(HeavyBall(), exempt=["counters_saturat"])


def test_only_transforms_are_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: the error message is ours
    with pytest.raises(TypeError, match="check_transform"):
        check_transform(lambda g: g)  # pyright: ignore[reportArgumentType]


def test_it_is_importable_without_any_extra():
    program = """
import sys
for name in ("flax", "optax", "orbax", "pytest", "hypothesis", "chex"):
    sys.modules[name] = None
import modulax.testing
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
