"""Scalar device functions that LLVM turns into vector code: fma, the exponential and arithmetic on small tuples.

Kernels are compiled without fast-math: numba optimises a kernel once for the running process and once for its disk
cache, and a freedom to reassociate or contract would let the two differ in the last bit. What speed needs of it is
spelt out: ``fma`` where two roundings are to be one, and ``add``, whose sums may be split over vector lanes.

Tuples of float32 stand for the channels or moments of one pixel; each function is written for any length by
recursion, which compiles away.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

PIXELS = 256  # pixels of a tile; planes of a tile's scratch buffer lie this far apart


@intrinsic
def fma(typingctx, a, b, c):
    """Return a·b + c with one rounding, float32."""
    signature = types.float32(types.float32, types.float32, types.float32)

    def codegen(context, builder, sig, args):
        return builder.fma(*args)

    return signature, codegen


@intrinsic
def bits(typingctx, x):
    """Return the bits of a float32 as int32."""
    return types.int32(types.float32), lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic
def from_bits(typingctx, x):
    """Return the float32 of the bits of an int32."""
    return types.float32(types.int32), lambda context, builder, sig, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def exponent(typingctx, x):
    """Return e of x = m·2^e, 1 ≤ m < 2, for a normal x > 0, float32."""

    def codegen(context, builder, sig, args):
        word = ir.IntType(32)
        high = builder.ashr(builder.bitcast(args[0], word), word(23))
        return builder.sitofp(builder.sub(high, word(127)), ir.FloatType())

    return types.float32(types.float32), codegen


@intrinsic
def mantissa(typingctx, x):
    """Return m of x = m·2^e, 1 ≤ m < 2, for a normal x > 0, float32."""

    def codegen(context, builder, sig, args):
        word = ir.IntType(32)
        low = builder.and_(builder.bitcast(args[0], word), word(0x7FFFFF))
        return builder.bitcast(builder.or_(low, word(0x3F800000)), ir.FloatType())

    return types.float32(types.float32), codegen


@intrinsic
def prefetch(typingctx, table, row):
    """Ask for the first cache line of a row of a 2D array ahead of its use."""

    def codegen(context, builder, sig, args):
        array = context.make_array(sig.args[0])(context, builder, args[0])
        stride = builder.extract_value(array.strides, 0)
        address = builder.add(builder.ptrtoint(array.data, stride.type),
                              builder.mul(builder.sext(args[1], stride.type) if args[1].type != stride.type
                                          else args[1], stride))
        pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], ir.FunctionType(
            ir.VoidType(), [pointer.type] + [ir.IntType(32)] * 3))
        builder.call(function, [pointer, ir.IntType(32)(0), ir.IntType(32)(3), ir.IntType(32)(1)])
        return context.get_dummy_value()

    return types.void(table, row), codegen


@register_jitable(error_model="numpy", forceinline=True)
def exp_nonpositive(x):
    """Return exp(x) for x ≤ 0 with a relative error below 3e-7, branch-free so that loops over pixels vectorise.

    2^t with t = x log2 e is split into an integer and a fraction in [-1/2, 1/2]: adding 1.5·2²³ rounds t into the low
    bits of a float. The fraction goes through a minimax polynomial of degree 5 (relative error 1e-7), the integer
    straight into the exponent bits.
    """
    x = max(x, np.float32(-75.0))  # so that opacity times the result stays a normal number
    shifted = fma(x, _LOG2_E, _ROUNDER)
    f = fma(x, _LOG2_E, _ROUNDER - shifted)
    p = fma(np.float32(1.325460243e-3), f, np.float32(9.671999181e-3))
    p = fma(p, f, np.float32(5.550779325e-2))
    p = fma(p, f, np.float32(2.402223191e-1))
    p = fma(p, f, np.float32(6.931469302e-1))
    p = fma(p, f, np.float32(1.0))
    exponent = np.int32(bits(shifted) << np.int32(23))
    return from_bits(np.int32(bits(p) + exponent))


@register_jitable(error_model="numpy", forceinline=True)
def log_positive(x):
    """Return the natural logarithm of a normal x > 0 to about 1e-7, branch-free (Cephes' polynomial of degree 9)."""
    e, m = exponent(x), mantissa(x)
    high = m > np.float32(1.41421356)
    m = m * np.float32(0.5) if high else m
    e = e + np.float32(1.0) if high else e
    f = m - np.float32(1.0)
    p = fma(np.float32(7.0376836292e-2), f, np.float32(-1.1514610310e-1))
    p = fma(p, f, np.float32(1.1676998740e-1))
    p = fma(p, f, np.float32(-1.2420140846e-1))
    p = fma(p, f, np.float32(1.4249322787e-1))
    p = fma(p, f, np.float32(-1.6668057665e-1))
    p = fma(p, f, np.float32(2.0000714765e-1))
    p = fma(p, f, np.float32(-2.4999993993e-1))
    p = fma(p, f, np.float32(3.3333331174e-1))
    z = f * f
    y = fma(e, np.float32(-2.12194440e-4), p * f * z) - np.float32(0.5) * z
    return fma(e, np.float32(0.693359375), f + y)


def add(a, b):
    """Return the element-wise sum of two tuples, in an order that may be split over vector lanes."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


@overload(add, jit_options={"fastmath": {"reassoc", "nsz"}})
def _add(a, b):  # numba types tuples by concatenation, not by unpacking
    if len(a) == 0:
        return lambda a, b: ()
    return lambda a, b: (a[0] + b[0],) + add(a[1:], b[1:])


def scale(w, a):
    """Return ``w`` times each element of ``a``."""
    return tuple(w * x for x in a)


@overload(scale)
def _scale(w, a):
    if len(a) == 0:
        return lambda w, a: ()
    return lambda w, a: (w * a[0],) + scale(w, a[1:])


def dot(a, b):
    """Return the inner product of two tuples."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


@overload(dot)
def _dot(a, b):
    if len(a) == 1:
        return lambda a, b: a[0] * b[0]
    return lambda a, b: fma(a[0], b[0], dot(a[1:], b[1:]))


def load_planes(buf, i, like):
    """Return the tuple buf[i], buf[i + PIXELS], … as long as ``like``."""
    return tuple(buf[i + k * PIXELS] for k in range(len(like)))


@overload(load_planes)
def _load_planes(buf, i, like):
    if len(like) == 0:
        return lambda buf, i, like: ()
    return lambda buf, i, like: (buf[i],) + load_planes(buf, i + _PLANE, like[1:])


def add_planes(buf, i, w, a):
    """Add w·a[k] to buf[i + k·PIXELS] for every k."""
    for k, x in enumerate(a):
        buf[i + k * PIXELS] += w * x


@overload(add_planes)
def _add_planes(buf, i, w, a):
    if len(a) == 0:
        return lambda buf, i, w, a: None

    def impl(buf, i, w, a):
        buf[i] = fma(w, a[0], buf[i])
        add_planes(buf, i + _PLANE, w, a[1:])

    return impl


def load_row(table, row, col, like):
    """Return the tuple table[row, col], table[row, col + 1], … as long as ``like``."""
    return tuple(table[row, col + k] for k in range(len(like)))


@overload(load_row)
def _load_row(table, row, col, like):
    if len(like) == 0:
        return lambda table, row, col, like: ()
    return lambda table, row, col, like: (table[row, col],) + load_row(table, row, col + 1, like[1:])


def store_row(table, row, col, a):
    """Write the tuple ``a`` to table[row, col], table[row, col + 1], …"""
    for k, x in enumerate(a):
        table[row, col + k] = x


@overload(store_row)
def _store_row(table, row, col, a):
    if len(a) == 0:
        return lambda table, row, col, a: None

    def impl(table, row, col, a):
        table[row, col] = a[0]
        store_row(table, row, col + 1, a[1:])

    return impl


_PLANE = np.uint64(PIXELS)
_LOG2_E = np.float32(1.4426950408889634)
_ROUNDER = np.float32(1.5 * 2**23)
