// 4D Gaussians: cull, splat and its vjp. One thread a point; launch: ceil(n / 256) blocks of 256.
#include "gaussian4d/slice.cuh"
#include "common/sh.cuh"

#define WEIGHT_MIN 0.05f  // a Gaussian of less weight at a time is left out there

// All kernels begin with the same parameters.
#define POINTS_AND_VIEW                                                                                             \
    long long n, const float *__restrict__ cam, float time, float duration, float eps, float blur, int rotates,     \
        int along_slice, int degree_t, const float *__restrict__ means, const float *__restrict__ times,            \
        const float *__restrict__ scales, const float *__restrict__ scales_t, const float *__restrict__ quats_l,    \
        const float *__restrict__ quats_r, const float *__restrict__ opacities, const float *__restrict__ sh, int sh_rows

__device__ __forceinline__ float weight(float variance, float dt, float blur) {
    return expf(-0.5f * dt * dt / (variance + blur));
}

// Mark the points that weigh something at the time and whose 1/255 box there meets the picture.
extern "C" __global__ void __launch_bounds__(256)
visible(POINTS_AND_VIEW, unsigned char* __restrict__ mask) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const float dt = time - times[i];
    float m[16];
    const Slice s = cut(load3(means, i), dt, load3(scales, i), scales_t[i], load_quaternion(quats_l, i),
                        load_quaternion(quats_r, i), rotates != 0, m);
    const float w = weight(s.variance, dt, blur);
    mask[i] = w > WEIGHT_MIN && in_view(cam, to_screen(cam, s.mean, s.root, s.scales, opacities[i] * w, eps, false));
}

// Project rows ids as they are at the time.
template <int DEGREE>
__global__ void __launch_bounds__(256)
project(POINTS_AND_VIEW, const long long* __restrict__ ids, float2* __restrict__ means2d, float* __restrict__ conics,
        float* __restrict__ depths, float* __restrict__ colors, float* __restrict__ out_opacities,
        float2* __restrict__ radii) {
    const long long m = blockIdx.x * 256ll + threadIdx.x;
    if (m >= n) return;
    const long long i = ids[m];
    const float dt = time - times[i];
    const Vec3 whole = load3(means, i);
    float matrix[16];
    const Slice s = cut(whole, dt, load3(scales, i), scales_t[i], load_quaternion(quats_l, i),
                        load_quaternion(quats_r, i), rotates != 0, matrix);
    const ScreenGaussian g = to_screen(cam, s.mean, s.root, s.scales, opacities[i] * weight(s.variance, dt, blur), eps,
                                       false);
    means2d[m] = make_float2(g.u, g.v);
    store3(conics, m, {g.a, g.b, g.c});
    depths[m] = g.z;
    out_opacities[m] = g.opacity;
    radii[m] = make_float2(g.rx, g.ry);
    constexpr int K = (DEGREE + 1) * (DEGREE + 1);
    float r, basis[16];
    const Vec3 d = direction(cam, along_slice ? s.mean : whole, r);
    sh_basis<DEGREE>(d.x, d.y, d.z, basis);
    Vec3 color = {0.5f, 0.5f, 0.5f};
    for (int h = 0; h <= degree_t; ++h) {
        const float factor = cosf(6.2831853f * h * dt / duration);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const Vec3 c = load3(sh, i * sh_rows + h * K + k);
            const float b = factor * basis[k];
            color.x += b * c.x; color.y += b * c.y; color.z += b * c.z;
        }
    }
    store3(colors, m, {fmaxf(color.x, 0.f), fmaxf(color.y, 0.f), fmaxf(color.z, 0.f)});
}

// Gradients of rows ids from those of their splats; v_sh has the active coefficients only.
template <int DEGREE>
__global__ void __launch_bounds__(256)
project_vjp(POINTS_AND_VIEW, const long long* __restrict__ ids, const float* __restrict__ colors,
            const float2* __restrict__ v_means2d, const float* __restrict__ v_conics,
            const float* __restrict__ v_depths, const float* __restrict__ v_colors,
            const float* __restrict__ v_splat_opacities, float* __restrict__ v_means, float* __restrict__ v_times,
            float* __restrict__ v_scales, float* __restrict__ v_scales_t, float4* __restrict__ v_quats_l,
            float4* __restrict__ v_quats_r, float* __restrict__ v_opacities, float* __restrict__ v_sh) {
    const long long m = blockIdx.x * 256ll + threadIdx.x;
    if (m >= n) return;
    const long long i = ids[m];
    const float dt = time - times[i], st = scales_t[i], opacity = opacities[i];
    const Vec3 whole = load3(means, i), scale = load3(scales, i);
    const Quaternion left = load_quaternion(quats_l, i), right = load_quaternion(quats_r, i);
    float matrix[16];
    const Slice s = cut(whole, dt, scale, st, left, right, rotates != 0, matrix);
    const float w = weight(s.variance, dt, blur), spread = s.variance + blur;
    const float2 v_mean2d = v_means2d[m];
    GaussianGradient g = to_screen_vjp(cam, s.mean, s.root, s.scales, opacity * w, eps, false, v_mean2d.x, v_mean2d.y,
                                       load3(v_conics, m), v_depths[m], v_splat_opacities[m]);
    v_opacities[m] = g.opacity * w;
    const float v_w = g.opacity * opacity * w;  // of log w = -dt^2/(2 (variance + blur))
    const float v_variance = v_w * 0.5f * (dt / spread) * (dt / spread);
    float v_dt = -v_w * dt / spread;

    constexpr int K = (DEGREE + 1) * (DEGREE + 1);
    float r, basis[16], v_basis[16] = {};
    const Vec3 d = direction(cam, along_slice ? s.mean : whole, r), c = load3(colors, m);
    Vec3 v = load3(v_colors, m);
    v = {c.x > 0.f ? v.x : 0.f, c.y > 0.f ? v.y : 0.f, c.z > 0.f ? v.z : 0.f};  // none where clamped at zero
    sh_basis<DEGREE>(d.x, d.y, d.z, basis);
    for (int h = 0; h <= degree_t; ++h) {
        const float turn = 6.2831853f * h / duration, factor = cosf(turn * dt), slope = -turn * sinf(turn * dt);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const Vec3 q = load3(sh, i * sh_rows + h * K + k);
            const float b = factor * basis[k], along = q.x * v.x + q.y * v.y + q.z * v.z;
            store3(v_sh, (m * (degree_t + 1) + h) * K + k, {b * v.x, b * v.y, b * v.z});
            v_basis[k] += factor * along;
            v_dt += slope * basis[k] * along;
        }
    }
    const Vec3 u = sh_direction_vjp<DEGREE>(d.x, d.y, d.z, v_basis);
    const float along = u.x * d.x + u.y * d.y + u.z * d.z;
    const Vec3 seen = {(u.x - along * d.x) * r, (u.y - along * d.y) * r, (u.z - along * d.z) * r};
    const Vec3 v_mean = {g.mean.x + seen.x, g.mean.y + seen.y, g.mean.z + seen.z};
    if (rotates) {
        float v_m[16], left_r, right_r;
        v_dt += cut_vjp(matrix, dt, s.variance, along_slice ? v_mean : g.mean, g.rot, v_variance, v_m);
        const float4 v_scale = scales4_vjp(left, right, scale, st, v_m);
        store3(v_scales, m, {v_scale.x, v_scale.y, v_scale.z});
        v_scales_t[m] = v_scale.w;
        const Quaternion a = normalised(left, left_r), b = normalised(right, right_r);
        Quaternion v_a, v_b;
        rotation4_vjp(a, b, v_m, v_a, v_b);
        v_a = unit_vjp(a, left_r, v_a);
        v_b = unit_vjp(b, right_r, v_b);
        v_quats_l[m] = make_float4(v_a.w, v_a.x, v_a.y, v_a.z);
        v_quats_r[m] = make_float4(v_b.w, v_b.x, v_b.y, v_b.z);
    } else {
        store3(v_scales, m, g.scales);
        v_scales_t[m] = v_variance;
        const Quaternion q = rotation_vjp(left, g.rot.m);
        v_quats_l[m] = make_float4(q.w, q.x, q.y, q.z);
        v_quats_r[m] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    v_times[m] = -v_dt;
    store3(v_means, m, v_mean);
}
