"""The reader of compiled programs, on short texts of HLO whose bytes are counted by hand, and on small programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from modulax.planning._costs import bytes_by_transform, communications
from modulax.planning._hlo import Traffic, array_bytes, traffic

KB = 1024


def program(entry: str, *computations: str) -> Traffic:
    return traffic("\n\n".join([*computations, f"ENTRY %main (p: f32[256]) -> f32[256] {{\n{entry}\n}}"]))


def totals(found: Traffic) -> list[tuple[str, int]]:
    return [(kernel.instruction.opcode, kernel.total) for kernel in found.kernels]


@pytest.mark.parametrize(
    "shape, size",
    [
        ("f32[8,128]{1,0:T(8,128)}", 4 * KB),
        ("f32[]", 4),
        ("(bf16[2,3]{1,0}, pred[5]{0}, token[])", 17),
        ("s4[7]{0}", 4),
        ("f8e4m3fn[16]{0}", 16),
        ("c64[2]{0}", 16),
        ("f32[<=4,2]{1,0}", 32),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 0),  # on the chip
    ],
)
def test_bytes_of_a_shape(shape: str, size: int):
    assert array_bytes(shape) == size
    assert array_bytes(shape, everywhere=True) == (size or 4 * KB)


def test_a_kernel_reads_its_operands_and_writes_its_results():
    found = program(
        """  %p = f32[256]{0} parameter(0)
  %c = f32[] constant(2)
  %near = f32[256]{0:T(256)S(1)} multiply(%p, %p), metadata={op_name="jit(f)/AdamW/ScaleByAdam/mul"}
  %t = (f32[256]{0}) tuple(%p)
  %e = f32[256]{0} get-tuple-element(%t), index=0
  ROOT %sum = f32[256]{0} add(%near, %e), metadata={op_name="jit(f)/add"}"""
    )
    assert totals(found) == [("multiply", 2 * KB), ("add", 2 * KB)]
    assert [kernel.owners for kernel in found.kernels] == [("ScaleByAdam",), ()]
    assert bytes_by_transform(found) == {"ScaleByAdam": 2 * KB, "": 2 * KB}
    assert found.bytes == 4 * KB


def test_a_fusion_belongs_to_the_transform_with_most_instructions():
    body = """%fused (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %x = f32[256]{0} add(%a, %a), metadata={op_name="jit(f)/AdamW/Chain/AddDecayedWeights/add"}
  %y = f32[256]{0} multiply(%x, %a), metadata={op_name="jit(f)/AdamW/Chain/ScaleByAdam/mul"}
  ROOT %z = f32[256]{0} multiply(%y, %x), metadata={op_name="jit(f)/AdamW/Chain/ScaleByAdam/mul"}
}"""
    entry = """  %p = f32[256]{0} parameter(0)
  ROOT %r = f32[256]{0} fusion(%p), kind=kLoop, calls=%fused"""
    (kernel,) = program(entry, body).kernels
    assert (kernel.total, kernel.owners) == (2 * KB, ("ScaleByAdam", "AddDecayedWeights"))


def test_only_the_slice_of_a_fusion_is_read_and_written():
    body = """%fused (a: f32[64,256], b: f32[64,256], i: s32[]) -> f32[64,256] {
  %a = f32[64,256]{1,0} parameter(0)
  %b = f32[64,256]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %c = s32[] constant(0)
  %cut = f32[1,256]{1,0} dynamic-slice(%b, %i, %c), dynamic_slice_sizes={1,256}
  %same = f32[64,256]{1,0} bitcast(%a)
  ROOT %new = f32[64,256]{1,0} dynamic-update-slice(%same, %cut, %i, %c)
}"""
    entry = """  %p = f32[64,256]{1,0} parameter(0)
  %q = f32[64,256]{1,0} parameter(1)
  %n = s32[] parameter(2)
  ROOT %r = f32[64,256]{1,0} fusion(%p, %q, %n), kind=kLoop, calls=%fused"""
    assert program(entry, body).bytes == KB + KB + 4


def test_what_is_asynchronous_is_counted_at_its_start():
    found = program(
        """  %p = f32[4,256]{1,0} parameter(0)
  %in = (f32[4,256]{1,0:S(1)}, f32[4,256]{1,0}, u32[]{:S(2)}) copy-start(%p)
  %near = f32[4,256]{1,0:S(1)} copy-done(%in)
  %cut = ((f32[4,256]{1,0}), f32[1,256]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:1], [0:256]}
  %row = f32[1,256]{1,0:S(1)} slice-done(%cut)
  %u = f32[1,256]{1,0} slice(%p), slice={[1:2], [0:256]}
  ROOT %v = f32[4,256]{1,0} dynamic-update-slice(%p, %u, %p, %p)"""
    )
    assert totals(found) == [
        ("copy-start", 4 * KB),
        ("slice-start", KB),
        ("slice", 2 * KB),
        ("dynamic-update-slice", 2 * KB),
    ]


def test_the_pieces_of_an_asynchronous_collective_are_one():
    """A TPU repeats it in the kernels that run meanwhile. Those of `jax.shard_map` all have one channel."""
    fused = """%fused_computation {
  %param.0 = f32[256]{0} parameter(0)
  %start = f32[2048]{0} all-gather(%param.0), channel_id=1, replica_groups=[2,8]<=[16]
  ROOT %c.0 = (f32[256]{0}, f32[2048]{0}) custom-call(%start), custom_call_target="AsyncCollectiveStart"
}
%async_collective_fusion.1 {
  %param.1 = f32[256]{0} parameter(0)
  ROOT %meanwhile = f32[2048]{0} all-gather(%param.1), channel_id=1, replica_groups=[2,8]<=[16]
}
%fused_computation.2 {
  %param.2 = f32[256]{0} parameter(0)
  %end = f32[2048]{0} all-gather(%param.2), channel_id=1, replica_groups=[2,8]<=[16]
  ROOT %c.2 = f32[2048]{0} custom-call(%param.2, %end), custom_call_target="AsyncCollectiveDone"
}"""
    entry = """  %p = f32[256]{0} parameter(0)
  %s = (f32[256]{0}, f32[2048]{0}) fusion(%p), kind=kCustom, calls=%fused_computation
  %x = f32[256]{0} get-tuple-element(%s), index=0
  %f = f32[2048]{0} fusion(%x), kind=kOutput, calls=%async_collective_fusion.1
  %d = f32[2048]{0} fusion(%x), kind=kCustom, calls=%fused_computation.2
  ROOT %other = f32[2048]{0} all-gather(%p), channel_id=1, replica_groups=[2,8]<=[16]"""
    assert [(c.kind, c.total) for c in program(entry, fused).collectives] == [("all-gather", 8 * KB)] * 2


def test_how_many_devices_exchange_data():
    """Groups are listed, counted, or axes of a mesh."""
    found = program(
        """  %p = f32[256]{0} parameter(0)
  %s = (f32[256]{0}, f32[2048]{0}) all-gather-start(%p), channel_id=1, replica_groups=[2,8]<=[16], OF_MUON
  %g = f32[2048]{0} all-gather-done(%s)
  %r = f32[256]{0} all-reduce(%p), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
  %t = f32[256]{0} all-to-all(%p), channel_id=3, replica_groups=mesh['a'=4,'b'=8] {'a','b':(2)4}
  %h = (f32[256]{0}, u32[], token[]) send(%p, %r), channel_id=4, frontend_attributes={_xla_megascale_target=""}
  ROOT %w = f32[256]{0} reduce-scatter(%p), channel_id=5, replica_groups={}""".replace(
            "OF_MUON", 'metadata={op_name="jit(f)/Muon/ScaleByMuon/dot"}'
        )
    )
    shown = [(c.kind, c.total, c.devices, c.owner) for c in found.collectives]
    assert shown == [
        ("all-gather", 8 * KB, 8, "ScaleByMuon"),
        ("all-reduce", KB, 2, ""),
        ("all-to-all", KB, 16, ""),
        ("send", KB, 0, ""),
        ("reduce-scatter", KB, 0, ""),
    ]
    sent = {c.kind: c.sent_bytes for c in communications(found.collectives, 32)}
    assert sent == {
        "all-gather": 7 * KB,
        "all-reduce": 2 * KB / 2,
        "all-to-all": KB * 15 / 16,
        "send": KB,
        "reduce-scatter": KB * 31 / 32,
    }


def test_a_batch_of_products_and_a_convolution():
    found = program(
        """  %a = f32[8,16,32]{2,1,0} parameter(0)
  %b = f32[8,32,64]{2,1,0} parameter(1)
  %d = f32[8,16,64]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}
  %i = f32[1,10,10,3]{3,2,1,0} parameter(2)
  %k = f32[3,3,3,5]{3,2,1,0} parameter(3)
  ROOT %c = f32[1,8,8,5]{3,2,1,0} convolution(%i, %k), window={size=3x3}, dim_labels=b01f_01io->b01f"""
    )
    assert found.flops == 2 * 8 * 16 * 64 * 32 + 2 * (8 * 8 * 5) * (3 * 3 * 3)


def compiled(function: Any, *shapes: Any, **options: Any) -> Traffic:
    return traffic(jax.jit(function, **options).lower(*shapes).compile().as_text() or "")


def test_a_loop_is_counted_as_often_as_it_runs_and_of_a_conditional_the_larger_branch():
    def function(p: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=7)
        return jax.lax.cond(p, lambda x: jnp.sin(x) @ x @ x, lambda x: x, x)

    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    found = compiled(function, jax.ShapeDtypeStruct((), bool), x)
    assert found.flops == (7 + 2) * 2 * 16**3
    assert any(kernel.times == 7 for kernel in found.kernels)


def test_an_update_in_place_moves_its_slice():
    def function(x: Any, u: Any, i: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, u, (i, jnp.zeros_like(i)))

    x, u = (jax.ShapeDtypeStruct((n, 256), jnp.float32) for n in (64, 2))
    found = compiled(function, x, u, jax.ShapeDtypeStruct((), jnp.int32), donate_argnums=0)
    assert 2 * 2 * KB <= found.bytes <= 2 * 2 * KB + 100


def test_a_gather_over_eight_devices():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"), (AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((8, 32), jnp.float32, sharding=NamedSharding(mesh, P("a")))
    (found,) = compiled(lambda x: x * 2, x, out_shardings=NamedSharding(mesh, P())).collectives
    assert (found.kind, found.total, found.devices) == ("all-gather", KB, 4)
