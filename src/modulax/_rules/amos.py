"""Amos: Adam-like scaling with a learning rate and a weight decay that fall with the scale of the model."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.patterns import by_path
from .._roles.role import AbstractRole
from .._support.arithmetic import depend_on
from .._transforms.block_means import AbstractByBlocks, Shape, means, per_output, roles_of_blocks, whole
from .._transforms.clipping import Clip
from .._transforms.momentum import Ema


class ScaleByAmosState(ma.AbstractState):
    """State of `ScaleByAmos`: step count, second moment, and the decay so far."""

    v: ma.PyTree = ma.like_params(nonnegative=True)
    b: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class _AtLeaf(NamedTuple):
    """The bias correction, which all leaves share, and the scale of one."""

    bias: ma.Array
    eta: ma.Array


def as_scales(x: Any) -> OrderedDict[str, Any]:
    """The scales by pattern, of one number or of a mapping; nothing for those of the roles."""
    if x is None:
        return OrderedDict()
    if isinstance(x, Mapping) and all(isinstance(pattern, str) for pattern in x):
        return OrderedDict(x)
    if isinstance(x, (str, Mapping, list, tuple)):
        raise ValueError(
            f"`eta` must be None, a number, or a mapping from patterns to numbers, such as "
            f'`{{"*bias": 0.5, "head.*": 0.1}}`, got {x!r}.'
        )
    return OrderedDict({"*": x})


def scale_of(role: AbstractRole, shape: Shape) -> float:
    """The scale to which the entries of a trained parameter are expected to grow, by its role."""
    if role.kind == "bias":
        return 0.5
    if role.kind in ("embedding", "position") and role.fan_out:
        return math.sqrt(2 / max(1, math.prod(shape[i] for i in role.fan_out)))
    if per_output(role, shape) is None:
        return 1.0
    return math.sqrt(1 / max(1, math.prod(shape[i] for i in role.fan_in)))


class AbstractAmosScaling(ma.AbstractFields):
    r"""The first hyperparameters of Amos: what the gradient is multiplied and divided by.

    Args:
        learning_rate: learning rate $\xi$, a number or a schedule; about the root of the batch size over the number of
            examples, after a warm-up, and without a decay.
        eta: $\eta$, a number for all parameters, or a mapping from patterns to numbers, such as
            `{"*bias": 0.5, "head.*": 0.1}`; of the patterns, which are those of `by_path`, the first one that fits
            wins. Where there is none, the role tells.
        beta: exponential decay rate $\beta$ of the second moment; $1 - \beta$ is about the learning rate.
    """

    learning_rate: ma.Number = ma.required_number(needs=ma.NON_NEGATIVE)
    eta: Any = ma.numbers(None, arranged=as_scales)
    beta: ma.Number = ma.number(0.999, needs=ma.DECAY)


class AbstractAmosDecay(ma.AbstractFields):
    r"""The last hyperparameters of Amos: those of the decay, and of its blocks.

    Args:
        extra_l2: $\lambda$, another weight decay.
        d_coef: $d$, how fast the learning rate falls.
        c_coef: $c$, how fast the weight decay falls.
        eps: $\varepsilon$, the smallest second moment.
        per_output: whether there is one number for each output and each token, and for each other array.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
    """

    extra_l2: ma.Number = ma.number(0.0)
    d_coef: ma.Number = ma.number(0.25)
    c_coef: ma.Number = ma.number(0.25)
    eps: ma.Number = ma.number(2.351e-38)
    _: ma.KW_ONLY
    per_output: bool = ma.static(False)
    roles: Any = roles_of_blocks()


class ScaleByAmos(AbstractAmosDecay, AbstractAmosScaling, AbstractByBlocks[ScaleByAmosState]):
    r"""Divides updates by their root mean square, with a decaying learning rate and weight decay: the step of Amos.

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) \operatorname{mean}_{\text{block}} |g_t|^2, \qquad
        \hat v_t = \max(v_t, \varepsilon) / (1 - \beta^t) \\
    \gamma_t &= \frac{\xi^2}{\sqrt{1 + c \sqrt\xi\, b_{t-1}}}
        \frac{\operatorname{mean}_{\text{block}} |g_t|^2}{\hat v_t} \\
    u_t &= \frac{1}{1 + d \sqrt{\xi \eta}\, b_{t-1}} \left( \frac{\xi \eta}{\sqrt{\hat v_t}}\, g_t
        + \left( \frac{\gamma_t}{2} + \lambda \right) w_t \right) \\
    b_t &= b_{t-1} + \gamma_t (1 + b_{t-1})
    \end{aligned}
    $$

    with $\xi$ the learning rate and $b_0 = 0$. The scale $\eta$ of a parameter is the size to which its entries are
    expected to grow. By default it follows from the role: 1 for the gain of a norm, 0.5 for a bias, $\sqrt{2 / d}$ for
    an embedding of $d$ entries per token, $1 / \sqrt n$ for a matrix and for a convolution of $n$ inputs, and 1 for
    everything else. The authors take $\sqrt{2 / n}$ for a layer whose inputs are rectified.

    A block is a single entry. With `per_output`, it is all weights of one output of a matrix or of one token of an
    embedding, and all of any other array, which saves nearly all of the memory.

    The learning rate is an argument here, because the decay depends on it.

    Args:
        learning_rate: learning rate $\xi$, a number or a schedule; about the root of the batch size over the number of
            examples, after a warm-up, and without a decay.
        eta: $\eta$, a number for all parameters, or a mapping from patterns to numbers, such as
            `{"*bias": 0.5, "head.*": 0.1}`; of the patterns, which are those of `by_path`, the first one that fits
            wins. Where there is none, the role tells.
        beta: exponential decay rate $\beta$ of the second moment; $1 - \beta$ is about the learning rate.
        extra_l2: $\lambda$, another weight decay.
        d_coef: $d$, how fast the learning rate falls.
        c_coef: $c$, how fast the weight decay falls.
        eps: $\varepsilon$, the smallest second moment.
        per_output: whether there is one number for each output and each token, and for each other array.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.

    References:
        Tian and Parikh, [Amos: An Adam-style Optimizer with Adaptive Weight Decay towards Model-Oriented
        Scale](https://arxiv.org/abs/2210.11693), 2022, and the authors'
        [code](https://github.com/google-research/jestimator).
    """

    needs = ("params",)
    by_blocks = ("v", "b")

    def numbers_of(self, role, shape):
        return (per_output(role, shape) or whole(shape)) if self.per_output else shape

    def init_leaf(self, p):
        return ScaleByAmosState(v=ma.second_moment_like(p), b=ma.second_moment_like(p))

    def prepare(self, count):
        return ma.bias(self.beta, count + 1)

    def where(self, tree):
        given = list(self.eta.values())
        rows = [x.shape for x in jtu.tree_leaves(tree)]
        places = by_path({x: i for i, x in enumerate(self.eta)}).labels(tree, partial=True) if given else rows
        found = zip(places, self.roles.labels(tree), rows, strict=True)
        return [
            given[i] if given and i is not None else jnp.asarray(scale_of(role, shape), ma.default_float())
            for i, role, shape in found
        ]

    def _at_leaf(self, now: Any, own: Any) -> _AtLeaf:
        return _AtLeaf(now, own)

    def update_leaf(self, now, g, s, p):
        xi, b = self.learning_rate, s.b
        square = means(ma.abs_sq(g), s.v.shape)
        v = ma.moment(self.beta, s.v, square)
        # Without a gradient so far, nothing is multiplied by it, and its derivative would be infinite.
        has_moment = v > 0
        inverse = jnp.where(has_moment, now.bias / jnp.maximum(jnp.where(has_moment, v, 1), self.eps), 0)
        # Where squares overflow, the step is zero, as Adam's is; zero times infinity would be NaN.
        ratio = jnp.where(jnp.isinf(square), 0, inverse * square)
        gamma = xi * xi / ma.safe_sqrt(1 + self.c_coef * ma.safe_sqrt(xi) * b) * ratio
        rate = xi * now.eta
        step = rate * ma.safe_sqrt(inverse) * g + (gamma / 2 + self.extra_l2) * p
        u = step / (1 + self.d_coef * ma.safe_sqrt(rate) * b)
        b = b + gamma * (1 + b)
        return depend_on(u, b), ScaleByAmosState(v=v, b=b)


class AbstractAmosSteps(ma.AbstractFields):
    """What `Amos` does before and after `ScaleByAmos`; a group because it has its place among the arguments.

    Args:
        momentum: exponential decay rate of the average of the steps; None for none.
        clip_value: the largest absolute value of an entry of the gradient; None for no clipping.
    """

    momentum: ma.OptionalNumber = ma.number(None, needs=ma.DECAY, optional=True)
    clip_value: ma.OptionalNumber = ma.number(None, needs=ma.NON_NEGATIVE, optional=True)


class Amos(AbstractAmosDecay, AbstractAmosSteps, AbstractAmosScaling, ma.AbstractOptimizer):
    r"""Adam-like optimizer that decays its learning rate and weight decay by itself, given the scale of each parameter.

        optimizer = Amos(schedules.WarmupConstant(0.0, 0.02, 1000))

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) \operatorname{mean}_{\text{block}} |g_t|^2, \qquad
        \hat v_t = \max(v_t, \varepsilon) / (1 - \beta^t) \\
    \gamma_t &= \frac{\xi^2}{\sqrt{1 + c \sqrt\xi\, b_{t-1}}}
        \frac{\operatorname{mean}_{\text{block}} |g_t|^2}{\hat v_t} \\
    u_t &= \frac{1}{1 + d \sqrt{\xi \eta}\, b_{t-1}} \left( \frac{\xi \eta}{\sqrt{\hat v_t}}\, g_t
        + \left( \frac{\gamma_t}{2} + \lambda \right) w_t \right) \\
    b_t &= b_{t-1} + \gamma_t (1 + b_{t-1}), \qquad w_{t+1} = w_t - u_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $v_0 = b_0 = 0$. With `momentum`, the average of the steps $u_t$ is taken in
    their place. The scale $\eta$ of a parameter is the size to which its entries are expected to grow; by default it
    follows from the role, see `ScaleByAmos`. A block is a single entry, or with `per_output` all weights of one output
    of a matrix, of one token of an embedding, or of any other array.

    Args:
        learning_rate: learning rate $\xi$, a number or a schedule; about the root of the batch size over the number of
            examples, after a warm-up, and without a decay.
        eta: $\eta$, a number for all parameters, or a mapping from patterns to numbers, such as
            `{"*bias": 0.5, "head.*": 0.1}`; of the patterns, which are those of `by_path`, the first one that fits
            wins. Where there is none, the role tells.
        beta: exponential decay rate $\beta$ of the second moment; $1 - \beta$ is about the learning rate.
        momentum: exponential decay rate of the average of the steps; None for none.
        clip_value: the largest absolute value of an entry of the gradient; None for no clipping.
        extra_l2: $\lambda$, another weight decay.
        d_coef: $d$, how fast the learning rate falls.
        c_coef: $c$, how fast the weight decay falls.
        eps: $\varepsilon$, the smallest second moment.
        per_output: whether there is one number for each output and each token, and for each other array.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.

    References:
        Tian and Parikh, [Amos: An Adam-style Optimizer with Adaptive Weight Decay towards Model-Oriented
        Scale](https://arxiv.org/abs/2210.11693), 2022, and the authors'
        [code](https://github.com/google-research/jestimator).
    """

    def transform(self) -> ma.Chain:
        step = self._part(ScaleByAmos)
        clip = [] if self.clip_value is None else [Clip(self.clip_value)]
        average = [] if self.momentum is None else [Ema(self.momentum, debias=False)]
        return ma.Chain(*clip, step, *average, ma.Scale(-1.0))
