// The ray transform of a surfel and its vector-Jacobian product (Huang et al. 2024, section 4.2), one surfel at a time.
// The same maths as gaian_hpc/renderers/gaussian2d/cpu.py, where each step is explained; in float64, for the inverse.
#pragma once
#include "common/camera.cuh"

#define ALPHA_SEEN (1. / 255.)
#define INFINITE ((double)__int_as_float(0x7f800000))
#define W_MAX 1e30  // of the inverse's entries: nearer to edge-on, a surfel has no area

struct Pixel { double x, y; };
struct Region { double x, y, xx, xy, yy; };  // middle and covariance of the ellipse alpha >= 1/255

// M: (u, v, 1) in standard deviations along the axes -> homogeneous pixels, for the centre p in camera coordinates.
__device__ __forceinline__ Matrix3d transform(const double* cam, Vec3d p, const Matrix3d& rot, double su, double sv) {
    double axes[6];  // of the surfel in camera coordinates, times the scales
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        axes[2 * i] = su * (cam[3 * i] * rot.m[0] + cam[3 * i + 1] * rot.m[3] + cam[3 * i + 2] * rot.m[6]);
        axes[2 * i + 1] = sv * (cam[3 * i] * rot.m[1] + cam[3 * i + 1] * rot.m[4] + cam[3 * i + 2] * rot.m[7]);
    }
    const double fx = cam[CAM_FX], fy = cam[CAM_FY], cx = cam[CAM_CX], cy = cam[CAM_CY];
    return {{fx * axes[0] + cx * axes[4], fx * axes[1] + cx * axes[5], fx * p.x + cx * p.z,
             fy * axes[2] + cy * axes[4], fy * axes[3] + cy * axes[5], fy * p.y + cy * p.z, axes[4], axes[5], p.z}};
}

// The surfel's normal in camera coordinates, turned towards the camera; sign tells whether it was.
__device__ __forceinline__ Vec3d facing_normal(const double* cam, Vec3d p, const Matrix3d& rot, double& sign) {
    const Vec3d n = {cam[0] * rot.m[2] + cam[1] * rot.m[5] + cam[2] * rot.m[8],
                     cam[3] * rot.m[2] + cam[4] * rot.m[5] + cam[5] * rot.m[8],
                     cam[6] * rot.m[2] + cam[7] * rot.m[5] + cam[8] * rot.m[8]};
    sign = n.x * p.x + n.y * p.y + n.z * p.z > 0. ? -1. : 1.;
    return {sign * n.x, sign * n.y, sign * n.z};
}

// The middle of the box around the ellipse u^2 + v^2 = 1 on the screen.
__device__ __forceinline__ Pixel middle(const Matrix3d& m) {
    const double d = m.m[6] * m.m[6] + m.m[7] * m.m[7] - m.m[8] * m.m[8];
    return {(m.m[0] * m.m[6] + m.m[1] * m.m[7] - m.m[2] * m.m[8]) / d,
            (m.m[3] * m.m[6] + m.m[4] * m.m[7] - m.m[5] * m.m[8]) / d};
}

// M with pixels counted from c.
__device__ __forceinline__ Matrix3d about(const Matrix3d& m, Pixel c) {
    return {{m.m[0] - c.x * m.m[6], m.m[1] - c.x * m.m[7], m.m[2] - c.x * m.m[8],
             m.m[3] - c.y * m.m[6], m.m[4] - c.y * m.m[7], m.m[5] - c.y * m.m[8], m.m[6], m.m[7], m.m[8]}};
}

// The inverse; not finite where there is none.
__device__ __forceinline__ Matrix3d inverse(const Matrix3d& a) {
    const double* m = a.m;
    const double c0 = m[4] * m[8] - m[5] * m[7], c1 = m[5] * m[6] - m[3] * m[8], c2 = m[3] * m[7] - m[4] * m[6];
    const double r = 1. / (m[0] * c0 + m[1] * c1 + m[2] * c2);
    return {{c0 * r, (m[2] * m[7] - m[1] * m[8]) * r, (m[1] * m[5] - m[2] * m[4]) * r,
             c1 * r, (m[0] * m[8] - m[2] * m[6]) * r, (m[2] * m[3] - m[0] * m[5]) * r,
             c2 * r, (m[1] * m[6] - m[0] * m[7]) * r, (m[0] * m[4] - m[1] * m[3]) * r}};
}

// Squared standard deviations at which alpha falls to 1/255; 0 where it never reaches that.
__device__ __forceinline__ double reach_of(double opacity) {
    return opacity >= ALPHA_SEEN ? 2. * log(255. * opacity) : 0.;
}

// Pixels within which the low-pass filter keeps alpha >= 1/255; -1 where it never does.
__device__ __forceinline__ double disc_of(double opacity) {
    return opacity >= ALPHA_SEEN ? sqrt(0.5 * reach_of(opacity)) * 1.001 + 0.01 : -1.;
}

// Where alpha >= 1/255 about the origin of m's pixels; unbounded for a surfel that reaches behind the camera.
__device__ __forceinline__ Region region(const Matrix3d& a, double opacity) {
    const double* m = a.m;
    const double square = reach_of(opacity), d = square * (m[6] * m[6] + m[7] * m[7]) - m[8] * m[8];
    if (!(d < -1e-6 * m[8] * m[8])) return {0., 0., INFINITE, 0., INFINITE};
    const Pixel c = {(square * (m[0] * m[6] + m[1] * m[7]) - m[2] * m[8]) / d,
                     (square * (m[3] * m[6] + m[4] * m[7]) - m[5] * m[8]) / d};
    const Matrix3d shifted = about(a, c);  // about the middle nothing cancels
    const double* n = shifted.m;
    return {c.x, c.y, -(square * (n[0] * n[0] + n[1] * n[1]) - n[2] * n[2]) / d,
            -(square * (n[0] * n[3] + n[1] * n[4]) - n[2] * n[5]) / d,
            -(square * (n[3] * n[3] + n[4] * n[4]) - n[5] * n[5]) / d};
}

// The gradient of M from those of W about the centre, v, and of the centre at fixed W.
__device__ __forceinline__ Matrix3d transform_vjp(const Matrix3d& m, const float* v, Pixel v_c) {
    const Pixel c = middle(m);
    const Matrix3d w = inverse(about(m, c));
    Matrix3d g;
    // With the centre as origin of W's pixels: dW/dx has W's first column in its last.
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        v_c.x += w.m[3 * k] * v[3 * k + 2];
        v_c.y += w.m[3 * k + 1] * v[3 * k + 2];
    }
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        double t[3];  // column j of V W', so that dL/dN = -W' V W'
#pragma unroll
        for (int i = 0; i < 3; ++i)
            t[i] = v[3 * i] * w.m[3 * j] + v[3 * i + 1] * w.m[3 * j + 1] + v[3 * i + 2] * w.m[3 * j + 2];
#pragma unroll
        for (int i = 0; i < 3; ++i) g.m[3 * i + j] = -(w.m[i] * t[0] + w.m[3 + i] * t[1] + w.m[6 + i] * t[2]);
    }
    // N is M about the centre; and the centre itself, sum +- M_x M_w / d, d = sum +- M_w^2.
    const double d = m.m[6] * m.m[6] + m.m[7] * m.m[7] - m.m[8] * m.m[8], vx = v_c.x / d, vy = v_c.y / d;
    const double both = c.x * vx + c.y * vy;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const double sign = k == 2 ? -1. : 1.;
        g.m[6 + k] += sign * (m.m[k] * vx + m.m[3 + k] * vy - 2. * m.m[6 + k] * both) - c.x * g.m[k] - c.y * g.m[3 + k];
        g.m[k] += sign * m.m[6 + k] * vx;
        g.m[3 + k] += sign * m.m[6 + k] * vy;
    }
    return g;
}
