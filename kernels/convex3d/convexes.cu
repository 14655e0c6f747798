// Convexes on the screen: their part of the compositor, their table, and the end of their gradient.
// The same maths as gaian_hpc/renderers/convex3d/cpu.py, where the formulas are explained.
#include "compositing/sort.cuh"
#include "compositing/binning.cuh"
#include "convex3d/hull.cuh"

#define SPAN_SLACK 0.02f  // pixels; covers rounding, the cut at 1/255 decides per pixel
#define UNBOUNDED 1e6f
#define FLAT 1e-6f

// Columns: centre (2), edges (6 of a, b, c), sharpness, opacity; the phi of 1/255, the range of x; N features, the
// colour (3) and perhaps the depth. phi = log sum exp of the edges' A = a x + b y + c, alpha = o / (1 + exp(s phi)).
template <int N>
struct Convex : ConstantFeatures<Convex<N>, N> {
    static constexpr int COLUMNS = 32, PIXEL = 22, GEOMETRY = 25, MOMENTS = 2 + 3 * N_EDGES;

    struct Geometry { const float* row; };

    struct Distances { float x, y, total, phi, w[N_EDGES]; };  // pixel about the centre; w = exp(A - max A), their sum

    static __device__ __forceinline__ Geometry load(const float* row) { return {row}; }

    static __device__ __forceinline__ void x_range(const Geometry& p, float& low, float& high) {
        low = p.row[23];
        high = p.row[24];
    }

    // Where all A lie below the phi of 1/255 the hull's smooth distance may, elsewhere not.
    static __device__ __forceinline__ void span(const Geometry& p, float x0, float x1, float& low, float& high) {
        const float left = x0 - p.row[0], right = x1 - p.row[0], limit = p.row[22];
        low = -UNBOUNDED;
        high = UNBOUNDED;
#pragma unroll
        for (int j = 0; j < N_EDGES; ++j) {
            const float a = p.row[2 + 3 * j], b = p.row[3 + 3 * j], c = p.row[4 + 3 * j];
            const float least = limit - c - fminf(a * left, a * right);  // of b y, at most
            if (b > FLAT) high = fminf(high, least / b);
            else if (b < -FLAT) low = fmaxf(low, least / b);
            else if (least < -1e3f * FLAT - 1e-4f * fabsf(limit - c)) high = low - 1.f;
        }
        if (high < low - SPAN_SLACK) { low = 0.f; high = -0.5f; return; }
        low += p.row[1] - SPAN_SLACK;
        high += p.row[1] + SPAN_SLACK;
    }

    static __device__ __forceinline__ Distances distances(const float* q, float px, float py) {
        Distances d;
        d.x = px - q[0];
        d.y = py - q[1];
#pragma unroll
        for (int j = 0; j < N_EDGES; ++j) d.w[j] = fmaf(q[2 + 3 * j], d.x, fmaf(q[3 + 3 * j], d.y, q[4 + 3 * j]));
        const float top = fmaxf(fmaxf(fmaxf(d.w[0], d.w[1]), fmaxf(d.w[2], d.w[3])), fmaxf(d.w[4], d.w[5]));
        d.total = 0.f;
#pragma unroll
        for (int j = 0; j < N_EDGES; ++j) {
            d.w[j] = __expf(d.w[j] - top);
            d.total += d.w[j];
        }
        d.phi = top + logf(d.total);
        return d;
    }

    static __device__ __forceinline__ float alpha(const float* q, float px, float py) {
        const float x = q[20] * distances(q, px, py).phi, e = __expf(-fabsf(x));
        return q[21] * (x > 0.f ? e : 1.f) / (1.f + e);
    }

    // g, h phi, and h w (1, x, y) for every edge, with h = -g (1 - I) for the indicator I and w the softmax of A.
    static __device__ __forceinline__ void moments(const float* q, float px, float py, float g, float* m) {
        const Distances d = distances(q, px, py);
        const float x = q[20] * d.phi, e = __expf(-fabsf(x));
        const float h = -g * (x > 0.f ? 1.f : e) / (1.f + e), f = h / d.total;
        m[0] = g;
        m[1] = h * d.phi;
#pragma unroll
        for (int j = 0; j < N_EDGES; ++j) {
            const float w = f * d.w[j];
            m[2 + 3 * j] = w; m[3 + 3 * j] = w * d.x; m[4 + 3 * j] = w * d.y;
        }
    }
};

// Lay splats out for the compositor. Launch: ceil(n / 256) blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
pack(long long n, const float2* __restrict__ centers, const float* __restrict__ edges,
     const float* __restrict__ sharpness, const float* __restrict__ opacities, const float* __restrict__ colors,
     const float* __restrict__ depths, const float4* __restrict__ extents, float* __restrict__ table) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    float* row = table + Convex<3>::COLUMNS * s;
    row[0] = centers[s].x; row[1] = centers[s].y;
#pragma unroll
    for (int k = 0; k < 3 * N_EDGES; ++k) row[2 + k] = edges[3 * N_EDGES * s + k];
    row[20] = sharpness[s];
    row[21] = opacities[s];
    bool never;
    const double limit = limit_of(opacities[s], sharpness[s], never);
    const float4 e = extents[s];
    row[22] = never ? -3e38f : (float)limit;
    row[23] = never ? 1.f : row[0] + e.x - SPAN_SLACK - 1e-3f * fabsf(e.x);
    row[24] = never ? 0.f : row[0] + e.z + SPAN_SLACK + 1e-3f * fabsf(e.z);
    store3(row + 25, 0, load3(colors, s));
    row[28] = depths[s];
}

// Boxes x0, y0, x1, y1 in pixels that hold every alpha >= 1/255. Launch as pack.
extern "C" __global__ void __launch_bounds__(256)
footprints(long long n, const float2* __restrict__ centers, const float4* __restrict__ extents, float4* __restrict__ boxes) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    const float2 c = centers[s];
    const float4 e = extents[s];
    boxes[s] = make_float4(c.x + e.x - (0.02f + 1e-3f * fabsf(e.x)), c.y + e.y - (0.02f + 1e-3f * fabsf(e.y)),
                           c.x + e.z + (0.02f + 1e-3f * fabsf(e.z)), c.y + e.w + (0.02f + 1e-3f * fabsf(e.w)));
}

// Turn summed terms into gradients of the splat fields, and of a shift of the whole splat. Launch as pack.
extern "C" __global__ void __launch_bounds__(256)
finish(long long n, int features, const float* __restrict__ table, const float* __restrict__ sums,
       float* __restrict__ v_edges, float* __restrict__ v_sharpness, float* __restrict__ v_opacities,
       float* __restrict__ v_colors, float* __restrict__ v_depths, float2* __restrict__ v_means2d) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    constexpr int MOMENTS = Convex<3>::MOMENTS;
    const float* row = table + Convex<3>::COLUMNS * s;
    const float* sum = sums + s * (MOMENTS + features);
    float x = 0.f, y = 0.f;
#pragma unroll
    for (int j = 0; j < N_EDGES; ++j) {
        const float by_offset = row[20] * sum[2 + 3 * j];
        store3(v_edges, N_EDGES * s + j, {row[20] * sum[3 + 3 * j], row[20] * sum[4 + 3 * j], by_offset});
        x -= row[2 + 3 * j] * by_offset;
        y -= row[3 + 3 * j] * by_offset;
    }
    v_means2d[s] = make_float2(x, y);
    v_sharpness[s] = sum[1];
    v_opacities[s] = row[21] > 0.f ? sum[0] / row[21] : 0.f;
    store3(v_colors, s, load3(sum + MOMENTS, 0));
    v_depths[s] = features > 3 ? sum[MOMENTS + 3] : 0.f;
}
