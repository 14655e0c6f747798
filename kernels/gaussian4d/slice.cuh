// The slice of a 4D Gaussian at a time, and its vector-Jacobian product (Yang et al. 2024, section 3.2).
// The same maths as gaian_hpc/renderers/gaussian4d/cpu.py, where the square root of the slice's covariance is derived.
#pragma once
#include "common/gaussian.cuh"

__device__ __forceinline__ Quaternion operator*(Quaternion a, Quaternion b) {
    return {a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z, a.w * b.x + a.x * b.w + a.y * b.z - a.z * b.y,
            a.w * b.y - a.x * b.z + a.y * b.w + a.z * b.x, a.w * b.z + a.x * b.y - a.y * b.x + a.z * b.w};
}

__device__ __forceinline__ Quaternion conjugate(Quaternion a) { return {a.w, -a.x, -a.y, -a.z}; }

// What stands for the unit vector along x, y, z or t: k, j, i or 1.
__device__ __forceinline__ Quaternion basis_quaternion(int axis) {
    return {axis == 3 ? 1.f : 0.f, axis == 2 ? 1.f : 0.f, axis == 1 ? 1.f : 0.f, axis == 0 ? 1.f : 0.f};
}

// The gradient of a stored quaternion from that of the normalised one u; r is the inverse norm.
__device__ __forceinline__ Quaternion unit_vjp(Quaternion u, float r, Quaternion v) {
    const float along = u.w * v.w + u.x * v.x + u.y * v.y + u.z * v.z;
    return {(v.w - along * u.w) * r, (v.x - along * u.x) * r, (v.y - along * u.y) * r, (v.z - along * u.z) * r};
}

// Write the rotation v -> l v conj(r) of space-time (x, y, z, t) to m (16), row by row.
__device__ __forceinline__ void rotation4(Quaternion left, Quaternion right, float* m) {
#pragma unroll
    for (int axis = 0; axis < 4; ++axis) {
        const Quaternion q = left * basis_quaternion(axis) * conjugate(right);
        m[axis] = q.z; m[4 + axis] = q.y; m[8 + axis] = q.x; m[12 + axis] = q.w;
    }
}

// Gradients of the two unit quaternions from that of the matrix, v (16).
__device__ __forceinline__ void rotation4_vjp(Quaternion left, Quaternion right, const float* v, Quaternion& v_left,
                                              Quaternion& v_right) {
    v_left = {}; v_right = {};
#pragma unroll
    for (int axis = 0; axis < 4; ++axis) {
        const Quaternion e = basis_quaternion(axis), v_image = {v[12 + axis], v[8 + axis], v[4 + axis], v[axis]};
        const Quaternion l = v_image * right * conjugate(e), r = conjugate(left * e) * v_image;
        v_left = {v_left.w + l.w, v_left.x + l.x, v_left.y + l.y, v_left.z + l.z};
        v_right = {v_right.w + r.w, v_right.x - r.x, v_right.y - r.y, v_right.z - r.z};
    }
}

struct Slice { Vec3 mean; Matrix3 root; Vec3 scales; float variance; };  // covariance: (root diag(scales)) its transpose

__device__ __forceinline__ float covariance_with_time(const float* m, int i) {
    return m[4 * i] * m[12] + m[4 * i + 1] * m[13] + m[4 * i + 2] * m[14] + m[4 * i + 3] * m[15];
}

// The reflection that takes the time row b of M to an axis: u = b/|b|, its last entry moved by one, and its factor.
struct Reflection { float u[3], v3, f; };

__device__ __forceinline__ Reflection reflection(const float* m, float tt) {
    const float r = 1.f / sqrtf(tt), u3 = m[15] * r;
    return {{m[12] * r, m[13] * r, m[14] * r}, u3 + (u3 >= 0.f ? 1.f : -1.f), 1.f / (1.f + fabsf(u3))};
}

// Cut a Gaussian at distance dt in time; fills m (16), its root in space-time, where rotates is set.
__device__ __forceinline__ Slice cut(Vec3 mean, float dt, Vec3 s, float st, Quaternion left, Quaternion right,
                                     bool rotates, float* m) {
    if (!rotates) return {mean, rotation(left), s, st};
    float r;
    rotation4(normalised(left, r), normalised(right, r), m);
#pragma unroll
    for (int i = 0; i < 4; ++i) { m[4 * i] *= s.x; m[4 * i + 1] *= s.y; m[4 * i + 2] *= s.z; m[4 * i + 3] *= st; }
    const float tt = m[12] * m[12] + m[13] * m[13] + m[14] * m[14] + m[15] * m[15], f = dt / tt;
    const Reflection q = reflection(m, tt);
    Slice cut;
    cut.mean = {mean.x + f * covariance_with_time(m, 0), mean.y + f * covariance_with_time(m, 1),
                mean.z + f * covariance_with_time(m, 2)};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float d = q.f * (m[4 * i] * q.u[0] + m[4 * i + 1] * q.u[1] + m[4 * i + 2] * q.u[2] + m[4 * i + 3] * q.v3);
#pragma unroll
        for (int j = 0; j < 3; ++j) cut.root.m[3 * i + j] = m[4 * i + j] - d * q.u[j];
    }
    cut.scales = {1.f, 1.f, 1.f};
    cut.variance = tt;
    return cut;
}

// Write the gradient of M (16) from those of the slice, and return that of dt through the mean.
__device__ __forceinline__ float cut_vjp(const float* m, float dt, float tt, Vec3 v_mean, const Matrix3& v_root,
                                         float v_tt, float* v_m) {
    const Reflection q = reflection(m, tt);
    const float v_moved[3] = {v_mean.x, v_mean.y, v_mean.z};
    float v_dt = 0.f;
#pragma unroll
    for (int j = 12; j < 16; ++j) v_m[j] = 0.f;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float* v = v_root.m + 3 * i;
        const float d = q.f * (v[0] * q.u[0] + v[1] * q.u[1] + v[2] * q.u[2]);
        const float w[4] = {v[0] - d * q.u[0], v[1] - d * q.u[1], v[2] - d * q.u[2], -d * q.v3};
        const float s = covariance_with_time(m, i) / tt, f = v_moved[i] * dt / tt;
        v_dt += v_moved[i] * s;
        v_tt -= f * s;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v_m[4 * i + j] = w[j] + f * m[12 + j];
            v_m[12 + j] += f * m[4 * i + j] - w[j] * s;
        }
    }
#pragma unroll
    for (int j = 12; j < 16; ++j) v_m[j] += 2.f * v_tt * m[j];
    return v_dt;
}

// Turn v_m from the gradient of M = R diag(s) into that of R, and return those of the scales.
__device__ __forceinline__ float4 scales4_vjp(Quaternion left, Quaternion right, Vec3 s, float st, float* v_m) {
    float r, matrix[16], v[4] = {};
    rotation4(normalised(left, r), normalised(right, r), matrix);
    const float scale[4] = {s.x, s.y, s.z, st};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        v[i % 4] += v_m[i] * matrix[i];
        v_m[i] *= scale[i % 4];
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}
