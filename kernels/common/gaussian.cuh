// Projection of a 3D Gaussian to the screen and its vector-Jacobian product (Zwicker et al. 2001), one point at a time.
// The same maths as gaian_hpc/renderers/projection.py, where each step is explained, in float32.
#pragma once
#include "common/camera.cuh"

#define VIEW_MARGIN 0.3f
#define COMPENSATION_MIN 0.005f
#define EXTENT_MAX 3.33f

struct ScreenGaussian {  // mean, conic, depth, opacity after compensation, half-widths of the 1/255 box
    float u, v, a, b, c, z, opacity, rx, ry;
};

struct Covariance { float xx, xy, yy, det, bare; };  // bare: determinant without the blur

struct Slopes { float x, y; bool free_x, free_y; };  // x/z and y/z clamped to the widened view; whether they were inside

__device__ __forceinline__ Slopes clamped_slopes(const float* cam, Vec3 p) {
    const float margin_x = VIEW_MARGIN * 0.5f * cam[CAM_W] / cam[CAM_FX];
    const float margin_y = VIEW_MARGIN * 0.5f * cam[CAM_H] / cam[CAM_FY];
    const float sx = p.x / p.z, sy = p.y / p.z;
    const float x = fminf(fmaxf(sx, -cam[CAM_CX] / cam[CAM_FX] - margin_x),
                          (cam[CAM_W] - cam[CAM_CX]) / cam[CAM_FX] + margin_x);
    const float y = fminf(fmaxf(sy, -cam[CAM_CY] / cam[CAM_FY] - margin_y),
                          (cam[CAM_H] - cam[CAM_CY]) / cam[CAM_FY] + margin_y);
    return {x, y, x == sx, y == sy};
}

struct Rows { float a[3], b[3]; };  // the two rows of J R, J the Jacobian of the projection

__device__ __forceinline__ Rows jacobian_rows(const float* cam, float z, Slopes s) {
    const float jx = cam[CAM_FX] / z, jy = cam[CAM_FY] / z;
    return {{jx * (cam[0] - s.x * cam[6]), jx * (cam[1] - s.x * cam[7]), jx * (cam[2] - s.x * cam[8])},
            {jy * (cam[3] - s.y * cam[6]), jy * (cam[4] - s.y * cam[7]), jy * (cam[5] - s.y * cam[8])}};
}

// T = J R M (2 x 3), M = rot diag(s): the screen covariance is T T' + eps.
__device__ __forceinline__ void screen_axes(const Rows& j, const Matrix3& rot, Vec3 s, float* t) {
    const float scale[3] = {s.x, s.y, s.z};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        t[k] = (j.a[0] * rot.m[k] + j.a[1] * rot.m[3 + k] + j.a[2] * rot.m[6 + k]) * scale[k];
        t[3 + k] = (j.b[0] * rot.m[k] + j.b[1] * rot.m[3 + k] + j.b[2] * rot.m[6 + k]) * scale[k];
    }
}

__device__ __forceinline__ Covariance covariance(const float* t, float eps) {
    const float xx = t[0] * t[0] + t[1] * t[1] + t[2] * t[2];
    const float xy = t[0] * t[3] + t[1] * t[4] + t[2] * t[5];
    const float yy = t[3] * t[3] + t[4] * t[4] + t[5] * t[5];
    const float c0 = t[1] * t[5] - t[2] * t[4], c1 = t[2] * t[3] - t[0] * t[5], c2 = t[0] * t[4] - t[1] * t[3];
    const float bare = c0 * c0 + c1 * c1 + c2 * c2;  // a cross product does not cancel for needles
    return {xx + eps, xy, yy + eps, bare + eps * (xx + yy) + eps * eps, bare};
}

__device__ __forceinline__ float compensation(const Covariance& s) {
    return sqrtf(fmaxf(s.bare / s.det, COMPENSATION_MIN * COMPENSATION_MIN));
}

__device__ __forceinline__ ScreenGaussian to_screen(const float* cam, Vec3 mean, const Matrix3& rot, Vec3 scales,
                                                    float opacity, float eps, bool antialiased) {
    const Vec3 p = to_camera(cam, mean);
    float t[6];
    screen_axes(jacobian_rows(cam, p.z, clamped_slopes(cam, p)), rot, scales, t);
    const Covariance s = covariance(t, eps);
    if (antialiased) opacity *= compensation(s);
    float extent = 0.f;
    if (opacity >= VISIBLE_ALPHA) extent = fminf(EXTENT_MAX, sqrtf(2.f * logf(255.f * opacity)));
    return {cam[CAM_FX] * p.x / p.z + cam[CAM_CX], cam[CAM_FY] * p.y / p.z + cam[CAM_CY],
            s.yy / s.det, -s.xy / s.det, s.xx / s.det, p.z, opacity, extent * sqrtf(s.xx), extent * sqrtf(s.yy)};
}

// Whether the 1/255 box, rounded up to whole pixels, meets the picture.
__device__ __forceinline__ bool in_view(const float* cam, const ScreenGaussian& g) {
    const float rx = ceilf(g.rx), ry = ceilf(g.ry);
    return in_depth(cam, g.z) && rx > 0 && ry > 0 && g.u + rx > 0 && g.u - rx < cam[CAM_W] && g.v + ry > 0 &&
           g.v - ry < cam[CAM_H];
}

struct GaussianGradient { Vec3 mean, scales; Matrix3 rot; float opacity; };

// Gradients of the world Gaussian from those of its screen mean, conic, depth and opacity.
__device__ __forceinline__ GaussianGradient to_screen_vjp(const float* cam, Vec3 mean, const Matrix3& rot, Vec3 scales,
                                                          float opacity, float eps, bool antialiased, float v_u,
                                                          float v_v, Vec3 v_conic, float v_depth, float v_opacity) {
    const Vec3 p = to_camera(cam, mean);
    const Slopes slopes = clamped_slopes(cam, p);
    const Rows j = jacobian_rows(cam, p.z, slopes);
    float t[6];
    screen_axes(j, rot, scales, t);
    const Covariance s = covariance(t, eps);
    // With Q the inverse covariance and V the symmetric gradient of Q, the gradient of the covariance is -Q V Q.
    const float a = s.yy / s.det, b = -s.xy / s.det, c = s.xx / s.det;
    const float v0 = v_conic.x, v1 = 0.5f * v_conic.y, v2 = v_conic.z;
    const float p00 = a * v0 + b * v1, p01 = a * v1 + b * v2, p10 = b * v0 + c * v1, p11 = b * v1 + c * v2;
    float v_xx = -(p00 * a + p01 * b), v_xy = -2.f * (p00 * b + p01 * c), v_yy = -(p10 * b + p11 * c);
    GaussianGradient g;
    g.opacity = v_opacity;
    if (antialiased) {
        if (s.bare / s.det > COMPENSATION_MIN * COMPENSATION_MIN) {
            const float half = 0.5f * v_opacity * opacity * sqrtf(s.bare / s.det);
            v_xx += half * ((s.yy - eps) / s.bare - s.yy / s.det);
            v_yy += half * ((s.xx - eps) / s.bare - s.xx / s.det);
            v_xy += half * (-2.f * s.xy / s.bare + 2.f * s.xy / s.det);
        }
        g.opacity *= compensation(s);
    }
    float v_t[6];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        v_t[k] = 2 * v_xx * t[k] + v_xy * t[3 + k];
        v_t[3 + k] = 2 * v_yy * t[3 + k] + v_xy * t[k];
    }
    const float scale[3] = {scales.x, scales.y, scales.z};
    float v_scale[3], v_a[3] = {}, v_b[3] = {};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const float u = v_t[k] * scale[k], w = v_t[3 + k] * scale[k];
        v_scale[k] = v_t[k] * (j.a[0] * rot.m[k] + j.a[1] * rot.m[3 + k] + j.a[2] * rot.m[6 + k]) +
                     v_t[3 + k] * (j.b[0] * rot.m[k] + j.b[1] * rot.m[3 + k] + j.b[2] * rot.m[6 + k]);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            g.rot.m[3 * i + k] = j.a[i] * u + j.b[i] * w;
            v_a[i] += u * rot.m[3 * i + k];
            v_b[i] += w * rot.m[3 * i + k];
        }
    }
    g.scales = {v_scale[0], v_scale[1], v_scale[2]};
    // Then of J = (jx, 0, -jx sx), (0, jy, -jy sy).
    const float jx = cam[CAM_FX] / p.z, jy = cam[CAM_FY] / p.z;
    const float v_j00 = v_a[0] * cam[0] + v_a[1] * cam[1] + v_a[2] * cam[2];
    const float v_j02 = v_a[0] * cam[6] + v_a[1] * cam[7] + v_a[2] * cam[8];
    const float v_j11 = v_b[0] * cam[3] + v_b[1] * cam[4] + v_b[2] * cam[5];
    const float v_j12 = v_b[0] * cam[6] + v_b[1] * cam[7] + v_b[2] * cam[8];
    Vec3 q = {jx * v_u, jy * v_v, v_depth - (jx * p.x * v_u + jy * p.y * v_v) / p.z};
    q.z += (-(v_j00 * jx + v_j11 * jy) + v_j02 * jx * slopes.x + v_j12 * jy * slopes.y) / p.z;
    if (slopes.free_x) { q.x -= v_j02 * jx / p.z; q.z += v_j02 * jx * slopes.x / p.z; }
    if (slopes.free_y) { q.y -= v_j12 * jy / p.z; q.z += v_j12 * jy * slopes.y / p.z; }
    g.mean = to_world_vjp(cam, q);
    return g;
}
