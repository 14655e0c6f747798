// 2D Gaussian Splatting: cull, splat and its vjp. One thread a surfel; launch: ceil(n / 256) blocks of 256.
#include "gaussian2d/transform.cuh"
#include "common/sh.cuh"

// Mark the surfels of which some alpha >= 1/255 may lie on the picture.
extern "C" __global__ void __launch_bounds__(256)
visible(long long n, const double* __restrict__ cam, const float* __restrict__ means, const float* __restrict__ quats,
        const float2* __restrict__ scales, const float* __restrict__ opacities, unsigned char* __restrict__ mask) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const double opacity = opacities[i];
    const Vec3d p = to_camera(cam, wide(load3(means, i)));
    bool seen = in_depth(cam, p.z) && opacity >= ALPHA_SEEN;
    if (seen) {
        Matrix3d m = transform(cam, p, rotation(wide(load_quaternion(quats, i))), scales[i].x, scales[i].y);
        const Pixel c = middle(m);
        m = about(m, c);
        const Matrix3d w = inverse(m);
        double size = 0.;
#pragma unroll
        for (int k = 0; k < 9; ++k) size += fabs(w.m[k]);
        const Region r = region(m, opacity);
        const double half_x = sqrt(fmax(r.xx, 0.)), half_y = sqrt(fmax(r.yy, 0.)), disc = disc_of(opacity);
        seen = size < W_MAX && fabs(c.x) + fabs(c.y) < W_MAX &&  // else seen exactly edge-on
               c.x + fmax(r.x + half_x, disc) > 0. && c.x + fmin(r.x - half_x, -disc) < cam[CAM_W] &&
               c.y + fmax(r.y + half_y, disc) > 0. && c.y + fmin(r.y - half_y, -disc) < cam[CAM_H];
    }
    mask[i] = seen;
}

// Project rows ids: centre, W about it, where alpha >= 1/255, depth, normal towards the camera, colour.
template <int DEGREE>
__global__ void __launch_bounds__(256)
project(long long n, const long long* __restrict__ ids, const double* __restrict__ cam, const float* __restrict__ means,
        const float* __restrict__ quats, const float2* __restrict__ scales, const float* __restrict__ opacities,
        const float* __restrict__ sh, int sh_rows, float2* __restrict__ means2d, float* __restrict__ inverses,
        float* __restrict__ regions, float* __restrict__ depths, float* __restrict__ normals,
        float* __restrict__ colors) {
    const long long j = blockIdx.x * 256ll + threadIdx.x;
    if (j >= n) return;
    const long long i = ids[j];
    const Vec3d mean = wide(load3(means, i)), p = to_camera(cam, mean);
    const Matrix3d rot = rotation(wide(load_quaternion(quats, i)));
    double sign, length;
    store3(normals, j, narrow(facing_normal(cam, p, rot, sign)));
    depths[j] = (float)p.z;
    Matrix3d m = transform(cam, p, rot, scales[i].x, scales[i].y);
    const Pixel c = middle(m);
    means2d[j] = make_float2((float)c.x, (float)c.y);
    m = about(m, c);
    const Matrix3d w = inverse(m);
#pragma unroll
    for (int k = 0; k < 9; ++k) inverses[9 * j + k] = (float)w.m[k];
    const Region r = region(m, opacities[i]);
    regions[5 * j] = (float)r.x;
    regions[5 * j + 1] = (float)r.y;
    store3(regions + 5 * j + 2, 0, narrow({r.xx, r.xy, r.yy}));
    store3(colors, j, sh_color<DEGREE>(sh, sh_rows, i, narrow(direction(cam, mean, length))));
}

// Gradients of rows ids from those of their splats; v_sh has the active coefficients only.
template <int DEGREE>
__global__ void __launch_bounds__(256, 2)
project_vjp(long long n, const long long* __restrict__ ids, const double* __restrict__ cam,
            const float* __restrict__ means, const float* __restrict__ quats, const float2* __restrict__ scales,
            const float* __restrict__ sh, int sh_rows, const float* __restrict__ colors,
            const float2* __restrict__ v_means2d, const float* __restrict__ v_inverses,
            const float* __restrict__ v_depths, const float* __restrict__ v_normals, const float* __restrict__ v_colors,
            float* __restrict__ v_means, float4* __restrict__ v_quats, float2* __restrict__ v_scales,
            float* __restrict__ v_sh) {
    const long long j = blockIdx.x * 256ll + threadIdx.x;
    if (j >= n) return;
    const long long i = ids[j];
    const Vec3d mean = wide(load3(means, i)), p = to_camera(cam, mean);
    const Quaterniond q = wide(load_quaternion(quats, i));
    const Matrix3d rot = rotation(q);
    const double su = scales[i].x, sv = scales[i].y;
    const Matrix3d g = transform_vjp(transform(cam, p, rot, su, sv), v_inverses + 9 * j,
                                     {v_means2d[j].x, v_means2d[j].y});
    // From M = K [s_u R t_u, s_v R t_v, p] to the world: gradients of s_u t_u, s_v t_v and the mean.
    Vec3d v[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        Vec3d v_camera = {cam[CAM_FX] * g.m[k], cam[CAM_FY] * g.m[3 + k],
                          cam[CAM_CX] * g.m[k] + cam[CAM_CY] * g.m[3 + k] + g.m[6 + k]};
        if (k == 2) v_camera.z += v_depths[j];
        v[k] = to_world_vjp(cam, v_camera);
    }
    v_scales[j] = make_float2((float)(rot.m[0] * v[0].x + rot.m[3] * v[0].y + rot.m[6] * v[0].z),
                              (float)(rot.m[1] * v[1].x + rot.m[4] * v[1].y + rot.m[7] * v[1].z));
    double sign, length;
    facing_normal(cam, p, rot, sign);
    const Vec3d v_n = to_world_vjp(cam, wide(load3(v_normals, j)));
    const double v_rot[9] = {su * v[0].x, sv * v[1].x, sign * v_n.x, su * v[0].y, sv * v[1].y, sign * v_n.y,
                             su * v[0].z, sv * v[1].z, sign * v_n.z};
    const Quaterniond v_q = rotation_vjp(q, v_rot);
    v_quats[j] = make_float4((float)v_q.w, (float)v_q.x, (float)v_q.y, (float)v_q.z);
    const Vec3 d = narrow(direction(cam, mean, length));
    const Vec3 u = sh_color_vjp<DEGREE>(sh, sh_rows, i, d, load3(colors, j), load3(v_colors, j), v_sh, j);
    store3(v_means, j, narrow({v[2].x + u.x * length, v[2].y + u.y * length, v[2].z + u.z * length}));
}
