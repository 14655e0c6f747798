// 3D Convex Splatting: cull, splat and its vjp. One thread a convex; launch: ceil(n / 256) blocks of 256.
// points are (N, count, 3), edges (M, 6, 3).
#include "convex3d/hull.cuh"
#include "common/sh.cuh"

// Where alpha >= 1/255 about the centre; x0 > x1 for nowhere.
__device__ __forceinline__ Box seen_of(const Hull& h, double delta, double sigma, double opacity, int by_length) {
    bool never;
    const double limit = limit_of(opacity, h.z * sigma, never);
    if (!h.n || never) return {1., 1., -1., -1.};
    return extent_of(h, h.z * delta, by_length, limit);
}

// Mark the convexes of which some alpha >= 1/255 may lie on the picture.
extern "C" __global__ void __launch_bounds__(256, 2)
visible(long long n, const double* __restrict__ cam, const float* __restrict__ points, int count,
        const float* __restrict__ delta, const float* __restrict__ sigma, const float* __restrict__ opacities,
        int by_length, unsigned char* __restrict__ mask) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const Hull h = project_hull(cam, points + 3 * count * i, count);
    const Box box = seen_of(h, delta[i], sigma[i], opacities[i], by_length);
    mask[i] = box.x0 <= box.x1 && h.u + box.x1 > 0. && h.u + box.x0 < cam[CAM_W] && h.v + box.y1 > 0. &&
              h.v + box.y0 < cam[CAM_H];
}

// Project rows ids: centre, edges, sharpness, depth, colour, and where alpha >= 1/255.
template <int DEGREE>
__global__ void __launch_bounds__(256, 2)
project(long long n, const long long* __restrict__ ids, const double* __restrict__ cam,
        const float* __restrict__ points, int count, const float* __restrict__ delta, const float* __restrict__ sigma,
        const float* __restrict__ opacities, const float* __restrict__ sh, int sh_rows, int by_length,
        float2* __restrict__ centers, float* __restrict__ edges, float* __restrict__ sharpness,
        float* __restrict__ depths, float* __restrict__ colors, float4* __restrict__ extents) {
    const long long j = blockIdx.x * 256ll + threadIdx.x;
    if (j >= n) return;
    const long long i = ids[j];
    const Hull h = project_hull(cam, points + 3 * count * i, count);
    const double k = h.z * delta[i];
    centers[j] = make_float2((float)h.u, (float)h.v);
    depths[j] = (float)h.z;
    sharpness[j] = (float)(h.z * sigma[i]);
    for (int e = 0; e < N_EDGES; ++e) {
        Vec3 row = {0.f, 0.f, ABSENT};
        if (e < h.n) {
            const Edge edge = edge_of(h, e, by_length);
            row = narrow({k * edge.x, k * edge.y, k * edge.offset});
        }
        store3(edges, N_EDGES * j + e, row);
    }
    Box box = seen_of(h, delta[i], sigma[i], opacities[i], by_length);
    if (!(box.x0 <= box.x1)) box = {0., 0., 0., 0.};
    extents[j] = make_float4((float)box.x0, (float)box.y0, (float)box.x1, (float)box.y1);
    double length;
    const Vec3d d = direction(cam, mean_of(points + 3 * count * i, count), length);
    store3(colors, j, sh_color<DEGREE>(sh, sh_rows, i, narrow(d)));
}

// Gradients of rows ids from those of their splats; v_sh has the active coefficients only. through_depth takes them
// through the depth inside smoothness and sharpness too.
template <int DEGREE>
__global__ void __launch_bounds__(256, 2)
project_vjp(long long n, const long long* __restrict__ ids, const double* __restrict__ cam,
            const float* __restrict__ points, int count, const float* __restrict__ delta,
            const float* __restrict__ sigma, const float* __restrict__ sh, int sh_rows, int by_length,
            int through_depth, const float* __restrict__ colors, const float* __restrict__ v_edges,
            const float* __restrict__ v_sharpness, const float* __restrict__ v_depths,
            const float* __restrict__ v_colors, float* __restrict__ v_points, float* __restrict__ v_delta,
            float* __restrict__ v_sigma, float* __restrict__ v_sh) {
    const long long j = blockIdx.x * 256ll + threadIdx.x;
    if (j >= n) return;
    const long long i = ids[j];
    const float* own = points + 3 * count * i;
    const Hull h = project_hull(cam, own, count);
    const double k = h.z * delta[i];
    double v_k = 0.;
    Pixel v_p[N_EDGES] = {};
    for (int e = 0; e < h.n; ++e) {
        const int from = h.at[e], to = h.at[(e + 1) % h.n];
        const Edge edge = edge_of(h, e, by_length);
        const Vec3d v = wide(load3(v_edges, N_EDGES * j + e));
        v_k += edge.x * v.x + edge.y * v.y + edge.offset * v.z;
        double v_x = k * (v.x - h.points[from].x * v.z), v_y = k * (v.y - h.points[from].y * v.z);
        v_p[from].x -= k * v.z * edge.x;
        v_p[from].y -= k * v.z * edge.y;
        if (by_length) {
            const double along = edge.x * v_x + edge.y * v_y;
            v_x = (v_x - along * edge.x) / edge.length;
            v_y = (v_y - along * edge.y) / edge.length;
        }
        v_p[to].y += v_x;
        v_p[from].y -= v_x;
        v_p[from].x += v_y;
        v_p[to].x -= v_y;
    }
    const double v_s = v_sharpness[j];
    v_delta[j] = (float)(h.z * v_k);
    v_sigma[j] = (float)(h.z * v_s);
    double v_z = v_depths[j];
    if (through_depth) v_z += delta[i] * v_k + sigma[i] * v_s;
    // The direction of the colour, and the depth, move with the mean of the points.
    double length;
    const Vec3 d = narrow(direction(cam, mean_of(own, count), length));
    const Vec3 u = sh_color_vjp<DEGREE>(sh, sh_rows, i, d, load3(colors, j), load3(v_colors, j), v_sh, j);
    const Vec3d share = {(u.x * length + cam[6] * v_z) / count, (u.y * length + cam[7] * v_z) / count,
                         (u.z * length + cam[8] * v_z) / count};
    for (int e = 0; e < count; ++e) {
        const Vec3d q = to_camera(cam, wide(load3(own, e)));
        const double x = cam[CAM_FX] / q.z * v_p[e].x, y = cam[CAM_FY] / q.z * v_p[e].y;
        const Vec3d v = to_world_vjp(cam, Vec3d{x, y, -(x * q.x + y * q.y) / q.z});
        store3(v_points, count * j + e, narrow({v.x + share.x, v.y + share.y, v.z + share.z}));
    }
}
