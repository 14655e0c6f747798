// The loss that pulls normals of surfels and of the depth map together, and its gradient. The same maths as
// gaian_hpc/renderers/gaussian2d/surface.py, where it is explained; in float64, as there.
//
// planes (5, height, width) are alpha, sum w z and sum w n on a region of the view that begins at pixel (x0, y0); the
// patch (patch_height, patch_width) begins at (left, top) of it. camera holds fx, fy, cx, cy, view width and height.
// Launch: blocks of 256 = 16 x 16 pixels of the patch, with a border of one pixel for normal_slopes.
#include "common/warp.cuh"

#define SIDE 16
#define ALPHA_LEAST 1e-6

struct Vec { double x, y, z; };

__device__ __forceinline__ Vec minus(Vec a, Vec b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__device__ __forceinline__ Vec cross(Vec a, Vec b) {
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
__device__ __forceinline__ double dot(Vec a, Vec b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

// The point of the depth map at pixel (x, y) of the region, or not a number where nothing is seen.
__device__ __forceinline__ Vec point(const double* camera, const float* planes, int height, int width, int x0, int y0,
                                     int x, int y) {
    const long long at = (long long)y * width + x;
    const double alpha = planes[at], seen = planes[(long long)height * width + at];
    const double d = alpha > ALPHA_LEAST ? seen / alpha : (double)__int_as_float(0x7fc00000);
    return {d * (x0 + x + 0.5 - camera[2]) / camera[0], d * (y0 + y + 0.5 - camera[3]) / camera[1], d};
}

// Write the gradient by sum w n to v (5, patch), those by the two differences of points to slopes (patch + 2, 6), and
// each block's sum of the loss.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
normal_slopes(const double* __restrict__ camera, const float* __restrict__ planes, const bool* __restrict__ keep,
              int height, int width, int x0, int y0, int left, int top, int patch_height, int patch_width,
              double* __restrict__ slopes, float* __restrict__ v, double* __restrict__ sums) {
    const int tiles_x = (patch_width + 2 + SIDE - 1) / SIDE;
    const int c = blockIdx.x % tiles_x * SIDE + threadIdx.x % SIDE, r = blockIdx.x / tiles_x * SIDE + threadIdx.x / SIDE;
    double loss = 0.;
    if (r < patch_height + 2 && c < patch_width + 2) {
        const int x = left + c - 1, y = top + r - 1;
        const bool own = r > 0 && r <= patch_height && c > 0 && c <= patch_width;
        const long long plane = (long long)height * width, at = (long long)y * width + x;
        Vec n = {0., 0., 0.}, by_a = n, by_b = n;
        if (x0 + x > 0 && x0 + x < camera[4] - 1. && y0 + y > 0 && y0 + y < camera[5] - 1. && keep[at]) {
            const Vec a = minus(point(camera, planes, height, width, x0, y0, x + 1, y),
                                point(camera, planes, height, width, x0, y0, x - 1, y));
            const Vec b = minus(point(camera, planes, height, width, x0, y0, x, y + 1),
                                point(camera, planes, height, width, x0, y0, x, y - 1));
            const Vec across = cross(b, a);
            const double length = sqrt(dot(across, across));
            if (length > 0.) {  // false where a neighbour sees nothing
                n = {across.x / length, across.y / length, across.z / length};
                const double alpha = planes[at];
                const Vec g = {-alpha * planes[2 * plane + at], -alpha * planes[3 * plane + at],
                               -alpha * planes[4 * plane + at]};
                const double along = dot(g, n);
                if (own) loss = 1. + along;
                const Vec across_g = {(g.x - along * n.x) / length, (g.y - along * n.y) / length,
                                      (g.z - along * n.z) / length};
                by_a = cross(across_g, b);
                by_b = cross(a, across_g);
            }
        }
        double* row = slopes + 6 * ((long long)r * (patch_width + 2) + c);
        row[0] = by_a.x; row[1] = by_a.y; row[2] = by_a.z;
        row[3] = by_b.x; row[4] = by_b.y; row[5] = by_b.z;
        if (own) {
            const long long own_plane = (long long)patch_height * patch_width;
            const long long to = (long long)(r - 1) * patch_width + c - 1;
            const float alpha = planes[at];
            v[2 * own_plane + to] = (float)(-alpha * n.x);
            v[3 * own_plane + to] = (float)(-alpha * n.y);
            v[4 * own_plane + to] = (float)(-alpha * n.z);
        }
    }
    __shared__ double parts[SIDE * SIDE];
    parts[threadIdx.x] = loss;
    for (int half = SIDE * SIDE / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

// Write the gradient by alpha and sum w z to v from those by differences of points.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
normal_depths(const double* __restrict__ camera, const float* __restrict__ planes, int height, int width, int x0, int y0,
              int left, int top, int patch_height, int patch_width, const double* __restrict__ slopes,
              float* __restrict__ v) {
    const int tiles_x = (patch_width + SIDE - 1) / SIDE;
    const int c = blockIdx.x % tiles_x * SIDE + threadIdx.x % SIDE, r = blockIdx.x / tiles_x * SIDE + threadIdx.x / SIDE;
    if (r >= patch_height || c >= patch_width) return;
    const int x = left + c, y = top + r;
    const long long wide = patch_width + 2, at = (long long)y * width + x;
    const double weights[3] = {(x0 + x + 0.5 - camera[2]) / camera[0], (y0 + y + 0.5 - camera[3]) / camera[1], 1.};
    double v_d = 0.;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const double g = slopes[6 * ((r + 1) * wide + c) + k] - slopes[6 * ((r + 1) * wide + c + 2) + k] +
                         slopes[6 * (r * wide + c + 1) + 3 + k] - slopes[6 * ((r + 2) * wide + c + 1) + 3 + k];
        v_d += g * weights[k];
    }
    const double alpha = planes[at];
    const bool inside = alpha > ALPHA_LEAST;
    const long long to = (long long)r * patch_width + c, own_plane = (long long)patch_height * patch_width;
    v[own_plane + to] = inside ? (float)(v_d / alpha) : 0.f;
    v[to] = inside ? (float)(-v_d * planes[(long long)height * width + at] / (alpha * alpha)) : 0.f;
}
