"""What a user sees: optimizers and states on the screen and in a notebook."""

import contextlib
import operator
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import modulax as mx

from .instances import EVERYTHING, Instance
from .loops import each

MLP = eqx.nn.MLP(2, 2, 32, 2, key=jax.random.key(0))
MUON = mx.Muon(0.02, adam_learning_rate=3e-4)
NAMES = {x: getattr(mx, x) for x in operator.attrgetter("__all__")(mx)} | vars(mx.schedules) | {"bfloat16": "bfloat16"}


def test_an_optimizer_shows_what_differs_from_the_defaults():
    assert repr(MUON) == str(MUON) == f"{MUON}" == "Muon(learning_rate=0.02, adam_learning_rate=0.0003)"
    assert repr(mx.SGD(0.1, momentum=0.0)) == "SGD(learning_rate=0.1, momentum=0.0)"  # the default is None
    assert repr(MUON.replace(nesterov=False, beta=jnp.float32(0.95))).count("=") == 3
    everything = f"{mx.Chain(mx.Clip(1.0), MUON):all}"
    assert "    adam_b2=0.999,\n" in everything
    assert len(everything.splitlines()) > 25


@each(EVERYTHING)
def test_the_short_form_builds_the_same(instance: Instance):
    made: Any = instance.make()
    with contextlib.suppress(SyntaxError, NameError, TypeError):  # with a function or a batch inside
        assert f"{eval(repr(made), {**NAMES}):all}" == f"{made:all}"
    assert len(repr(made)) <= len(f"{made:all}")
    assert made._repr_html_().startswith("<table>") or "()" in repr(made)


def test_another_function_with_the_name_of_the_default_is_shown():
    def bound(step: Any) -> Any:
        return step

    bound.__qualname__ = mx.ScaleByADOPT().clip_value_fn.__qualname__
    assert "clip_value_fn=" in repr(mx.ScaleByADOPT(clip_value_fn=bound))
    assert "clip_value_fn=" not in repr(mx.ScaleByADOPT())


def test_a_state_fits_on_a_screen_without_the_static_fields_of_the_model():
    state, seen = MUON.init(MLP), []
    text = repr(state)
    assert len(text.splitlines()) <= 20
    assert "mu={layers.0.weight: f32[32,2], layers.1.weight: f32[32,32], layers.2.weight: f32[2,32]}" in text
    assert not re.search("in_features|activation|names|None", text)
    jax.jit(lambda state: seen.append(repr(state)))(state)
    jax.tree.map(lambda x: x.delete(), state)  # as `jax.jit` does with `donate_argnums`
    seen += [repr(state), repr(jax.eval_shape(MUON.init, eqx.filter(MLP, eqx.is_array)))]
    assert {shown.replace("=i32[]", "=0") for shown in seen} == {text}
    params = {f"blocks.{i}": {"weight": jnp.ones((8, 8)), "bias": jnp.ones(8)} for i in range(100)}
    text = repr(mx.Chain(mx.ClipByGlobalNorm(1.0), MUON).init(params))
    assert len(text.splitlines()) <= 20
    assert "... and 97 more; 100 arrays, 25 KiB}" in text
    assert max(map(len, text.splitlines())) < 170


def test_states_of_other_kinds():
    p = {"w": jnp.ones((64, 64))}
    assert "mu={w.codes: i8[64,64], w.scales: f32[32,1]}" in repr(mx.LowBit(mx.Adam(0.1)).init(p))
    assert "hyperparameters=SGD(learning_rate=0.1)" in repr(mx.inject_hyperparams(mx.SGD)(0.1).init(p))
    assert "0.mu.w: f32[64,64]" in repr(mx.from_optax(optax.adam(0.1)).init(p))
    assert repr(mx.Trace(0.9).init(jnp.ones(3))) == "TraceState(trace=f32[3])"


def test_the_optimizer_of_nnx_and_the_train_state_fit_on_a_screen():
    model = nnx.Sequential(*(nnx.Linear(n, m, rngs=nnx.Rngs(0)) for n, m in ((2, 32), (32, 32), (32, 2))))
    optimizer = mx.nnx.Optimizer(model, MUON, wrt=nnx.Param)
    text = repr(optimizer)
    assert len(text.splitlines()) <= 12
    for part in ("adam_learning_rate=0.0003,", "wrt=Param", "step=0", "state=13 arrays, 5.03 KiB"):
        assert part in text
    assert "optimizer=Muon(" in repr(nnx.List([optimizer]))
    assert optimizer._repr_html_().count("<table>") == 2

    class State(mx.linen.TrainState):
        batch_stats: Any

    state = State.create(apply_fn=print, params={"w": np.ones(99)}, tx=mx.SGD(0.1), batch_stats={"mean": np.ones(2)})
    assert repr(state).startswith("State(\n  step=0,\n  params={w: f64[99](numpy)},\n  tx=SGD(learning_rate=0.1),\n")
    assert "batch_stats={mean: f64[2](numpy)}" in repr(state)


def test_notebooks_show_tables():
    labels = mx.by_path({"a<b": "x", "*": "x"})
    shown = mx.Partition({"x": mx.Chain(mx.Clip(1.0), mx.AdamW(mx.schedules.Linear(0.1, 0.0, 5), b1=0.8))}, labels)
    cells = re.findall("<td[^>]*>([^<]*)</td>", shown._repr_html_())
    rows = {name: rest for name, *rest in zip(cells[::3], cells[1::3], cells[2::3], strict=True)}
    assert rows["transforms.x.parts.adamw.b1"] == ["0.8", "0.9"]
    assert rows["transforms.x.parts.adamw.learning_rate.end_value"] == ["0.0", ""]
    assert "a&lt;b" in rows["labels"][0]
    state = MUON.init({f"w{i}<": jnp.ones((2, 2)) for i in range(80)})._repr_html_()
    assert "mu.w0&lt;</td>" in state
    assert state.count("<tr>") == 62
    assert state.endswith("<p>84 arrays, 1.27 KiB</p>")
