// Spherical harmonics of degree 0 to 3 and their derivatives: basis, order and signs of 3DGS.
#pragma once
#include "common/camera.cuh"

#define SH_C0 0.28209479177387814f
#define SH_C1 0.4886025119029199f
#define SH_C20 1.0925484305920792f
#define SH_C21 0.31539156525252005f
#define SH_C22 0.5462742152960396f
#define SH_C30 0.5900435899266435f
#define SH_C31 2.890611442640554f
#define SH_C32 0.4570457994644658f
#define SH_C33 0.3731763325901154f
#define SH_C34 1.445305721320277f

// Write the (DEGREE + 1)^2 basis functions at a unit direction.
template <int DEGREE>
__device__ __forceinline__ void sh_basis(float x, float y, float z, float* basis) {
    basis[0] = SH_C0;
    if (DEGREE >= 1) { basis[1] = -SH_C1 * y; basis[2] = SH_C1 * z; basis[3] = -SH_C1 * x; }
    if (DEGREE >= 2) {
        basis[4] = SH_C20 * x * y;
        basis[5] = -SH_C20 * y * z;
        basis[6] = SH_C21 * (2.f * z * z - x * x - y * y);
        basis[7] = -SH_C20 * x * z;
        basis[8] = SH_C22 * (x * x - y * y);
    }
    if (DEGREE >= 3) {
        basis[9] = -SH_C30 * y * (3.f * x * x - y * y);
        basis[10] = SH_C31 * x * y * z;
        basis[11] = -SH_C32 * y * (4.f * z * z - x * x - y * y);
        basis[12] = SH_C33 * z * (2.f * z * z - 3.f * x * x - 3.f * y * y);
        basis[13] = -SH_C32 * x * (4.f * z * z - x * x - y * y);
        basis[14] = SH_C34 * z * (x * x - y * y);
        basis[15] = -SH_C30 * x * (x * x - 3.f * y * y);
    }
}

// The gradient of sum_k v[k] basis_k with respect to (x, y, z), taken as free variables.
template <int DEGREE>
__device__ __forceinline__ Vec3 sh_direction_vjp(float x, float y, float z, const float* v) {
    float vx = 0.f, vy = 0.f, vz = 0.f;
    if (DEGREE >= 1) { vx -= SH_C1 * v[3]; vy -= SH_C1 * v[1]; vz += SH_C1 * v[2]; }
    if (DEGREE >= 2) {
        vx += SH_C20 * (y * v[4] - z * v[7]) + 2.f * x * (SH_C22 * v[8] - SH_C21 * v[6]);
        vy += SH_C20 * (x * v[4] - z * v[5]) - 2.f * y * (SH_C22 * v[8] + SH_C21 * v[6]);
        vz += -SH_C20 * (y * v[5] + x * v[7]) + 4.f * SH_C21 * z * v[6];
    }
    if (DEGREE >= 3) {
        const float xx = x * x, yy = y * y, zz = z * z;
        vx += -SH_C30 * 6.f * x * y * v[9] + SH_C31 * y * z * v[10] + SH_C32 * 2.f * x * y * v[11] -
              SH_C33 * 6.f * x * z * v[12] - SH_C32 * (4.f * zz - 3.f * xx - yy) * v[13] +
              SH_C34 * 2.f * x * z * v[14] - SH_C30 * 3.f * (xx - yy) * v[15];
        vy += -SH_C30 * 3.f * (xx - yy) * v[9] + SH_C31 * x * z * v[10] - SH_C32 * (4.f * zz - xx - 3.f * yy) * v[11] -
              SH_C33 * 6.f * y * z * v[12] + SH_C32 * 2.f * x * y * v[13] - SH_C34 * 2.f * y * z * v[14] +
              SH_C30 * 6.f * x * y * v[15];
        vz += SH_C31 * x * y * v[10] - SH_C32 * 8.f * y * z * v[11] + SH_C33 * (6.f * zz - 3.f * xx - 3.f * yy) * v[12] -
              SH_C32 * 8.f * x * z * v[13] + SH_C34 * (xx - yy) * v[14];
    }
    return {vx, vy, vz};
}

// The colour max(0, SH + 1/2) of point i, which has sh_rows coefficients of 3 values, at a unit direction.
template <int DEGREE>
__device__ __forceinline__ Vec3 sh_color(const float* sh, int sh_rows, long long i, Vec3 d) {
    float basis[16];
    sh_basis<DEGREE>(d.x, d.y, d.z, basis);
    Vec3 color = {0.5f, 0.5f, 0.5f};
#pragma unroll
    for (int k = 0; k < (DEGREE + 1) * (DEGREE + 1); ++k) {
        const Vec3 c = load3(sh, i * sh_rows + k);
        color.x += basis[k] * c.x; color.y += basis[k] * c.y; color.z += basis[k] * c.z;
    }
    return {fmaxf(color.x, 0.f), fmaxf(color.y, 0.f), fmaxf(color.z, 0.f)};
}

// Write the gradients of point i's active coefficients to row m of v_sh; return that of the direction, at right angles
// to it, from the gradient v of the colour, which is none where the colour was clamped at zero.
template <int DEGREE>
__device__ __forceinline__ Vec3 sh_color_vjp(const float* sh, int sh_rows, long long i, Vec3 d, Vec3 color, Vec3 v,
                                             float* v_sh, long long m) {
    constexpr int K = (DEGREE + 1) * (DEGREE + 1);
    float basis[16], v_basis[16];
    v = {color.x > 0.f ? v.x : 0.f, color.y > 0.f ? v.y : 0.f, color.z > 0.f ? v.z : 0.f};
    sh_basis<DEGREE>(d.x, d.y, d.z, basis);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const Vec3 s = load3(sh, i * sh_rows + k);
        store3(v_sh, m * K + k, {basis[k] * v.x, basis[k] * v.y, basis[k] * v.z});
        v_basis[k] = s.x * v.x + s.y * v.y + s.z * v.z;
    }
    const Vec3 u = sh_direction_vjp<DEGREE>(d.x, d.y, d.z, v_basis);
    const float along = u.x * d.x + u.y * d.y + u.z * d.z;
    return {u.x - along * d.x, u.y - along * d.y, u.z - along * d.z};
}
