// Splats that are 2D Gaussians on the screen: their part of the compositor, their table, and the end of their gradient.
// The same maths as gaian_hpc/renderers/ellipses/cpu.py, where the formulas are explained.
#include "compositing/sort.cuh"
#include "compositing/binning.cuh"

#define SPAN_SLACK 0.01f  // pixels; covers rounding, the cut at 1/255 decides per pixel

// Columns: mean (2), conic (3), opacity; the ellipse alpha = 1/255 (6); colour (3), depth. With N = 3 features, the
// colour, or 4.
template <bool ABSGRAD, int N>
struct Ellipse : ConstantFeatures<Ellipse<ABSGRAD, N>, N> {
    static constexpr int COLUMNS = 16, PIXEL = 6, GEOMETRY = 12, MOMENTS = ABSGRAD ? 8 : 6;

    struct Geometry { float x, y, det, limit, top, reach, inverse, slope; };

    static __device__ __forceinline__ Geometry load(const float* row) {
        return {row[0], row[1], row[6], row[7], row[8], row[9], row[10], row[11]};
    }

    static __device__ __forceinline__ void x_range(const Geometry& p, float& low, float& high) {
        low = p.x - p.reach;
        high = p.x + p.reach;
    }

    // The lowest and highest y over [x0, x1]: each branch is extreme at the point nearest to its top.
    static __device__ __forceinline__ void span(const Geometry& p, float x0, float x1, float& low, float& high) {
        float left = x0 - p.x, right = x1 - p.x;
        if (left > p.reach || right < -p.reach) { low = 0.f; high = -0.5f; return; }
        left = fmaxf(left, -p.reach);
        right = fminf(right, p.reach);
        float e = fminf(fmaxf(p.top, left), right);
        high = p.y + (sqrtf(fmaxf(p.limit - p.det * e * e, 0.f)) * p.inverse - p.slope * e) + SPAN_SLACK;
        e = fminf(fmaxf(-p.top, left), right);
        low = p.y - (sqrtf(fmaxf(p.limit - p.det * e * e, 0.f)) * p.inverse + p.slope * e) - SPAN_SLACK;
    }

    static __device__ __forceinline__ float alpha(const float* q, float px, float py) {
        const float dx = q[0] - px, dy = q[1] - py;
        const float power = (-0.5f * q[2] * dx - q[3] * dy) * dx - 0.5f * q[4] * dy * dy;
        return power <= 0.f ? q[5] * __expf(power) : 0.f;
    }

    static __device__ __forceinline__ void moments(const float* q, float px, float py, float g, float* m) {
        const float dx = q[0] - px, dy = q[1] - py, gx = g * dx, gy = g * dy;
        m[0] = g; m[1] = gx; m[2] = gy; m[3] = gx * dx; m[4] = gx * dy; m[5] = gy * dy;
        if (ABSGRAD) { m[6] = fabsf(q[2] * gx + q[3] * gy); m[7] = fabsf(q[3] * gx + q[4] * gy); }
    }
};

// Lay splats out for the compositor. Launch: ceil(n / 256) blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
pack(long long n, const float2* __restrict__ means2d, const float* __restrict__ conics,
     const float* __restrict__ depths, const float* __restrict__ colors, const float* __restrict__ opacities,
     float4* __restrict__ table) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    const float2 mean = means2d[s];
    const float a = conics[3 * s], b = conics[3 * s + 1], c = conics[3 * s + 2], opacity = opacities[s];
    // Of the rounded conic, exact in float64; where it is not positive, the ellipse is unbounded.
    const float det = (float)max((double)a * c - (double)b * b, 1e-12 * a * c);
    const float limit = 2.f * logf(255.f * opacity) * 1.001f + 1e-3f;  // twice the largest sigma
    table[4 * s] = make_float4(mean.x, mean.y, a, b);
    table[4 * s + 1] = make_float4(c, opacity, det, limit * c);
    table[4 * s + 2] = make_float4(-b * sqrtf(limit / (a * det)), limit > 0.f ? sqrtf(limit * c / det) + SPAN_SLACK : -1.f,
                                   1.f / c, b / c);
    table[4 * s + 3] = make_float4(colors[3 * s], colors[3 * s + 1], colors[3 * s + 2], depths[s]);
}

// Boxes x0, y0, x1, y1 in pixels that hold every alpha >= 1/255. Launch as pack.
extern "C" __global__ void __launch_bounds__(256)
footprints(long long n, const float2* __restrict__ means2d, const float2* __restrict__ radii, float4* __restrict__ boxes) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    const float2 mean = means2d[s], r = radii[s];
    const float x = r.x * 1.001f + 0.01f, y = r.y * 1.001f + 0.01f;
    boxes[s] = make_float4(mean.x - x, mean.y - y, mean.x + x, mean.y + y);
}

// Turn summed moments into gradients of the splat fields; d alpha/d sigma = -alpha. Launch as pack.
extern "C" __global__ void __launch_bounds__(256)
finish(long long n, int moments, int channels, const float* __restrict__ table, const float* __restrict__ sums,
       float2* __restrict__ v_means2d, float* __restrict__ v_conics, float* __restrict__ v_opacities,
       float* __restrict__ v_colors, float* __restrict__ v_depths, float2* __restrict__ absgrad) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    const float* row = table + 16 * s;
    const float* sum = sums + s * (moments + channels);
    const float a = row[2], b = row[3], c = row[4], opacity = row[5];
    v_means2d[s] = make_float2(-(a * sum[1] + b * sum[2]), -(b * sum[1] + c * sum[2]));
    v_conics[3 * s] = -0.5f * sum[3];
    v_conics[3 * s + 1] = -sum[4];
    v_conics[3 * s + 2] = -0.5f * sum[5];
    v_opacities[s] = opacity > 0.f ? sum[0] / opacity : 0.f;
    for (int k = 0; k < 3; ++k) v_colors[3 * s + k] = sum[moments + k];
    v_depths[s] = channels > 3 ? sum[moments + 3] : 0.f;
    if (moments == 8) absgrad[s] = make_float2(sum[6], sum[7]);
}
