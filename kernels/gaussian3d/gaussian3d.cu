// 3D Gaussian Splatting: cull, splat and its vjp. One thread a point; launch: ceil(n / 256) blocks of 256.
#include "common/gaussian.cuh"
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
    float r;
    store3(colors, m, sh_color<DEGREE>(sh, sh_rows, i, direction(cam, mean, r)));
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
    float r;
    const Vec3 d = direction(cam, mean, r);
    const Vec3 u = sh_color_vjp<DEGREE>(sh, sh_rows, i, d, load3(colors, m), load3(v_colors, m), v_sh, m);
    store3(v_means, m, {g.mean.x + u.x * r, g.mean.y + u.y * r, g.mean.z + u.z * r});
}
