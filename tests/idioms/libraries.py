"""What programs do with other libraries: Flax, Orbax and Equinox keep, save and shard states."""

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax as real
import orbax.checkpoint as ocp
from flax import nnx, serialization as typed_serialization, traverse_util
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState

from ._table import GRADS, PARAMS, idiom, idioms, names, take
from .programs import Linear
from .states import adam, grouped, injected, scheduled

serialization: Any = typed_serialization  # whose types know a state as a dict


def created(o: Any, tx: Any = None) -> Any:
    return TrainState.create(apply_fn=None, params=PARAMS, tx=tx or o.adam(0.1))


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "state"


# flax.serialization, whose dicts are those of many checkpoints.
idioms(
    state_dict=lambda o: serialization.to_state_dict(adam(o)),
    state_dict_of_groups=lambda o: serialization.to_state_dict(grouped(o).init(PARAMS)),
    state_dict_of_injection=lambda o: serialization.to_state_dict(take(injected(o))[1]),
    state_dict_read=lambda o: serialization.from_state_dict(
        o.adam(0.1).init(PARAMS), serialization.to_state_dict(adam(o))
    ),
    state_as_bytes=lambda o: serialization.to_bytes(o.adam(0.1).init(PARAMS)),
    state_from_bytes=lambda o: take(
        o.adam(0.1), serialization.from_bytes(o.adam(0.1).init(PARAMS), serialization.to_bytes(adam(o)))
    ),
    msgpack=lambda o: serialization.msgpack_restore(
        serialization.msgpack_serialize(serialization.to_state_dict(adam(o)))
    ),
    flat_names=lambda o: sorted(
        traverse_util.flatten_dict(serialization.to_state_dict(take(scheduled(o))[1]), sep="/")
    ),
    bytes_of_optax_read=lambda o: serialization.from_bytes(
        o.adam(0.1).init(PARAMS), serialization.to_bytes(adam(real))
    ),
    bytes_of_a_schedule_read=lambda o: take(
        scheduled(o),
        serialization.from_bytes(scheduled(o).init(PARAMS), serialization.to_bytes(take(scheduled(real))[1])),
    ),
    bytes_of_groups_read=lambda o: serialization.from_bytes(
        grouped(o).init(PARAMS), serialization.to_bytes(take(grouped(real))[1])
    ),
    bytes_of_injection_read=lambda o: serialization.from_bytes(
        injected(o).init(PARAMS), serialization.to_bytes(take(injected(real))[1])
    ),
    bytes_read_by_optax=lambda o: real.global_norm(
        serialization.from_bytes(real.adam(0.1).init(PARAMS), serialization.to_bytes(adam(o)))[0].mu
    ),
    arrays_in_a_file=lambda o: sorted(saved_arrays(adam(o)).items()),
    train_state=lambda o: created(o).apply_gradients(grads=GRADS).opt_state,
    train_state_in_a_program=lambda o: jax.jit(lambda s: s.apply_gradients(grads=GRADS))(created(o)).params,
    train_state_scanned=lambda o: (
        jax.lax.scan(lambda s, _: (s.apply_gradients(grads=GRADS), s.step), created(o), None, 2)[0].opt_state
    ),
    train_state_stacked=lambda o: (
        jax.vmap(lambda s, g: s.apply_gradients(grads=g))(
            jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), created(o, o.sgd(0.1, 0.9))),
            jax.tree.map(lambda x: jnp.stack([x, x]), GRADS),
        )
        .opt_state[0]
        .trace
    ),
    train_state_as_bytes=lambda o: serialization.to_bytes(created(o)),
    train_state_as_a_dict=lambda o: serialization.to_state_dict(created(o))["opt_state"],
    train_state_read=lambda o: (
        serialization.from_bytes(created(o), serialization.to_bytes(created(o).apply_gradients(grads=GRADS))).opt_state
    ),
    train_state_moments=lambda o: created(o).apply_gradients(grads=GRADS).opt_state[0].mu,
    train_state_replaced=lambda o: (
        (s := created(o))
        and s.replace(opt_state=(s.opt_state[0]._replace(count=jnp.asarray(4)), *s.opt_state[1:])).opt_state
    ),
    train_state_rate=lambda o: created(o, injected(o)).opt_state.hyperparams["learning_rate"],
    train_state_paths=lambda o: names(created(o)),
    frozen_params=lambda o: take(o.adam(0.1), params=freeze(PARAMS), grads=freeze(GRADS)),
    frozen_params_masked=lambda o: take(
        o.multi_transform({"slow": o.sgd(0.1), "fast": o.adam(0.1)}, FrozenDict({"b": "slow", "w": "fast"})),
        params=freeze(PARAMS),
        grads=freeze(GRADS),
    )[0],
    masked_by_flat_path=lambda o: take(
        o.adamw(0.1, weight_decay=0.1, mask=lambda p: traverse_util.path_aware_map(lambda path, _: path[-1] != "b", p))
    )[0],
)


def saved_arrays(tree: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    flat = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
    np.savez(buffer, **jax.device_get(flat))
    buffer.seek(0)
    return dict(np.load(buffer))


def boxed() -> Any:
    return {name: nn.Partitioned(x, ("x",) * x.ndim) for name, x in PARAMS.items()}


idioms(
    specs_of_boxed_params=lambda o: jax.tree.map(
        str, nn.get_partition_spec(jax.eval_shape(o.adam(0.1).init, boxed())), is_leaf=lambda x: isinstance(x, jax.P)
    ),
    boxed_update=lambda o: take(o.adam(0.1), params=boxed(), grads=boxed())[0]["w"].value,
    boxed_state=lambda o: nn.unbox(o.adam(0.1).init(boxed())),
    specs_of_a_train_state=lambda o: jax.tree.map(
        str,
        nn.get_partition_spec(TrainState.create(apply_fn=None, params=boxed(), tx=o.adam(0.1))).opt_state,
        is_leaf=lambda x: isinstance(x, jax.P),
    ),
)


# Orbax and Equinox.
@idiom
def orbax_standard(o: Any) -> Any:
    with folder() as path, ocp.StandardCheckpointer() as saver:
        saver.save(path, adam(o))
        saver.wait_until_finished()
        return take(o.adam(0.1), saver.restore(path, jax.eval_shape(o.adam(0.1).init, PARAMS)))


@idiom
def orbax_tree(o: Any) -> Any:
    with folder() as path, ocp.PyTreeCheckpointer() as saver:
        saver.save(path, {"opt": adam(o), "params": PARAMS})
        raw = saver.restore(path)
        return saver.restore(path, item={"opt": o.adam(0.1).init(PARAMS), "params": PARAMS})["opt"], raw["opt"]


@idiom
def orbax_of_optax_read(o: Any) -> Any:
    with folder() as path, ocp.StandardCheckpointer() as saver:
        saver.save(path, take(scheduled(real))[1])
        saver.wait_until_finished()
        return take(scheduled(o), saver.restore(path, scheduled(o).init(PARAMS)))


@idiom
def equinox_serialized(o: Any) -> Any:
    buffer = io.BytesIO()
    eqx.tree_serialise_leaves(buffer, adam(o))
    buffer.seek(0)
    return take(o.adam(0.1), eqx.tree_deserialise_leaves(buffer, o.adam(0.1).init(PARAMS)))


@idiom
def equinox_tree_at(o: Any) -> Any:
    return eqx.tree_at(lambda s: s[0].mu["w"], adam(o), jnp.zeros((2, 3)))


@idiom
def equinox_step(o: Any) -> Any:
    model, tx = Linear(PARAMS["w"], PARAMS["b"]), o.adam(0.1)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        grads = eqx.filter_grad(lambda m: jnp.sum(m.activation(m.weight) * m.bias))(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state

    model, state = step(model, tx.init(eqx.filter(model, eqx.is_inexact_array)))
    return model.weight, state[0].mu.bias, state[0].count


# flax.nnx.
class Model(nnx.Module):
    """Two parameters and a loss."""

    def __init__(self):
        self.kernel, self.bias = nnx.Param(PARAMS["w"]), nnx.Param(PARAMS["b"])

    def loss(self) -> jax.Array:
        return jnp.sum((self.kernel[...] + self.bias[...]) ** 2)


def optimizer(tx: Any) -> Any:
    model = Model()
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def stepped(tx: Any) -> Any:
    model, opt = optimizer(tx)
    opt.update(model, nnx.grad(Model.loss)(model))
    return model, opt


def flat(state: Any) -> dict[str, Any]:
    return {"/".join(map(str, path)): x for path, x in nnx.to_flat_state(state)}


@idiom
def nnx_rate_written(o: Any) -> Any:
    model, opt = optimizer(injected(o))
    opt.opt_state.hyperparams["learning_rate"][...] = 0.5
    opt.update(model, nnx.grad(Model.loss)(model))
    return model.kernel[...], opt.opt_state.hyperparams["learning_rate"][...]


@idiom
def nnx_rate_assigned(o: Any) -> Any:
    model, opt = optimizer(injected(o))
    opt.opt_state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    opt.update(model, nnx.grad(Model.loss)(model))
    return model.kernel[...], opt.opt_state.hyperparams["learning_rate"]


@idiom
def nnx_replaced_by_a_dict(o: Any) -> Any:
    _, opt = stepped(o.adam(0.1))
    state = nnx.state(opt)
    pure = nnx.to_pure_dict(state)
    nnx.replace_by_pure_dict(state, jax.tree.map(lambda x: x * 0, pure))
    nnx.update(opt, state)
    return nnx.to_pure_dict(nnx.state(opt)), sorted(pure)


@idiom
def nnx_in_a_program(o: Any) -> Any:
    model, opt = optimizer(o.adam(0.1))

    @nnx.jit
    def step(model: Any, opt: Any) -> Any:
        opt.update(model, nnx.grad(Model.loss)(model))

    step(model, opt)
    return model.kernel[...], opt.opt_state[0].mu["kernel"][...], opt.step[...]


@idiom
def nnx_split_and_merged(o: Any) -> Any:
    graph, state = nnx.split(stepped(o.sgd(0.1, 0.9)))

    @jax.jit
    def step(state: Any) -> Any:
        model, opt = nnx.merge(graph, state)
        opt.update(model, nnx.grad(Model.loss)(model))
        return nnx.state((model, opt))

    return flat(step(state))


idioms(
    nnx_state=lambda o: flat(nnx.state(stepped(o.adam(0.1))[1])),
    nnx_moments=lambda o: stepped(o.adam(0.1))[1].opt_state[0].mu["kernel"][...],
    nnx_rate=lambda o: optimizer(injected(o))[1].opt_state.hyperparams["learning_rate"][...],
    nnx_pure_dict=lambda o: nnx.to_pure_dict(nnx.state(stepped(o.adam(0.1))[1], nnx.optimizer.OptState)),
    nnx_chain=lambda o: flat(nnx.state(stepped(o.chain(o.clip(1.0), scheduled_nnx(o)))[1])),
    nnx_groups=lambda o: flat(
        nnx.state(
            stepped(
                o.multi_transform(
                    {"a": o.sgd(0.1), "b": o.adam(0.1)}, lambda p: jax.tree.map(lambda x: "b" if x.ndim > 1 else "a", p)
                )
            )[1]
        )
    ),
    nnx_multi_steps=lambda o: flat(nnx.state(stepped(o.MultiSteps(o.sgd(0.1), 2))[1])),
    nnx_rate_of_a_tuner=lambda o: [
        rate_of_a_tuner(optimizer(tx)[1]) for tx in (injected(o), o.adam(0.1), o.chain(o.clip(1.0), injected(o)))
    ],
    nnx_transformation=lambda o: optimizer(o.adam(0.1))[1].tx._fields,
)


def scheduled_nnx(o: Any) -> Any:
    return o.adamw(o.linear_schedule(0.1, 0.0, 10))


def rate_of_a_tuner(opt: Any) -> Any:
    """As Tunix does."""
    try:
        return opt.opt_state.hyperparams["learning_rate"][...]
    except AttributeError:
        for part in opt.opt_state:
            if hasattr(part, "hyperparams"):
                return part.hyperparams["learning_rate"][...]
    return None
