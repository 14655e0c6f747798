// 3D Gaussian Splatting: cull, splat and its vjp. One thread a point; launch: ceil(n / 256) blocks of 256.
#include "common/camera.cuh"
#include "common/sh.cuh"

// Mark the points whose 1/255 box meets the picture.
extern "C" __global__ void __launch_bounds__(256)
visible(long long n, const float* __restrict__ cam, const float* __restrict__ means, const float* __restrict__ quats,
        const float* __restrict__ scales, const float* __restrict__ opacities, float eps, int antialiased,
        unsigned char* __restrict__ mask) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const ScreenGaussian g = to_screen(cam, load3(means, i), rotation(load_quaternion(quats, i)), load3(scales, i),
                                       opacities[i], eps, antialiased != 0);
    mask[i] = in_view(cam, g);
}

// Project rows ids: screen mean, conic, depth, colour max(0, SH + 1/2), opacity and radii.
template <int DEGREE>
__global__ void __launch_bounds__(256)
project(long long n, const long long* __restrict__ ids, const float* __restrict__ cam, const float* __restrict__ means,
        const float* __restrict__ quats, const float* __restrict__ scales, const float* __restrict__ opacities,
        const float* __restrict__ sh, int sh_rows, float eps, int antialiased, float2* __restrict__ means2d,
        float* __restrict__ conics, float* __restrict__ depths, float* __restrict__ colors,
        float* __restrict__ out_opacities, float2* __restrict__ radii) {
    const long long m = blockIdx.x * 256ll + threadIdx.x;
    if (m >= n) return;
    const long long i = ids[m];
    const Vec3 mean = load3(means, i);
    const ScreenGaussian g = to_screen(cam, mean, rotation(load_quaternion(quats, i)), load3(scales, i), opacities[i],
                                       eps, antialiased != 0);
    means2d[m] = make_float2(g.u, g.v);
    store3(conics, m, {g.a, g.b, g.c});
    depths[m] = g.z;
    out_opacities[m] = g.opacity;
    radii[m] = make_float2(g.rx, g.ry);
    float r, basis[16];
    const Vec3 d = direction(cam, mean, r);
    sh_basis<DEGREE>(d.x, d.y, d.z, basis);
    Vec3 color = {0.5f, 0.5f, 0.5f};
#pragma unroll
    for (int k = 0; k < (DEGREE + 1) * (DEGREE + 1); ++k) {
        const Vec3 c = load3(sh, i * sh_rows + k);
        color.x += basis[k] * c.x; color.y += basis[k] * c.y; color.z += basis[k] * c.z;
    }
    store3(colors, m, {fmaxf(color.x, 0.f), fmaxf(color.y, 0.f), fmaxf(color.z, 0.f)});
}

// Gradients of rows ids from those of their splats; v_sh has the active coefficients only.
template <int DEGREE>
__global__ void __launch_bounds__(256)
project_vjp(long long n, const long long* __restrict__ ids, const float* __restrict__ cam,
            const float* __restrict__ means, const float* __restrict__ quats, const float* __restrict__ scales,
            const float* __restrict__ opacities, const float* __restrict__ sh, int sh_rows, float eps, int antialiased,
            const float* __restrict__ colors, const float2* __restrict__ v_means2d, const float* __restrict__ v_conics,
            const float* __restrict__ v_depths, const float* __restrict__ v_colors,
            const float* __restrict__ v_splat_opacities, float* __restrict__ v_means, float4* __restrict__ v_quats,
            float* __restrict__ v_scales, float* __restrict__ v_opacities, float* __restrict__ v_sh) {
    const long long m = blockIdx.x * 256ll + threadIdx.x;
    if (m >= n) return;
    const long long i = ids[m];
    const Vec3 mean = load3(means, i);
    const Quaternion q = load_quaternion(quats, i);
    const float2 v_mean2d = v_means2d[m];
    const GaussianGradient g = to_screen_vjp(cam, mean, rotation(q), load3(scales, i), opacities[i], eps,
                                             antialiased != 0, v_mean2d.x, v_mean2d.y, load3(v_conics, m), v_depths[m],
                                             v_splat_opacities[m]);
    const Quaternion v_q = rotation_vjp(q, g.rot.m);
    v_quats[m] = make_float4(v_q.w, v_q.x, v_q.y, v_q.z);
    store3(v_scales, m, g.scales);
    v_opacities[m] = g.opacity;
    constexpr int K = (DEGREE + 1) * (DEGREE + 1);
    float r, basis[16], v_basis[16];
    const Vec3 d = direction(cam, mean, r), c = load3(colors, m);
    Vec3 v = load3(v_colors, m);
    v = {c.x > 0.f ? v.x : 0.f, c.y > 0.f ? v.y : 0.f, c.z > 0.f ? v.z : 0.f};  // none where clamped at zero
    sh_basis<DEGREE>(d.x, d.y, d.z, basis);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const Vec3 s = load3(sh, i * sh_rows + k);
        store3(v_sh, m * K + k, {basis[k] * v.x, basis[k] * v.y, basis[k] * v.z});
        v_basis[k] = s.x * v.x + s.y * v.y + s.z * v.z;
    }
    const Vec3 u = sh_direction_vjp<DEGREE>(d.x, d.y, d.z, v_basis);
    const float along = u.x * d.x + u.y * d.y + u.z * d.z;
    store3(v_means, m, {g.mean.x + (u.x - along * d.x) * r, g.mean.y + (u.y - along * d.y) * r,
                        g.mean.z + (u.z - along * d.z) * r});
}
