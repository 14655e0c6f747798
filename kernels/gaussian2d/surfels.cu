// Surfels on the screen: their part of the compositor, their table, and the end of their gradient.
// The same maths as gaian_hpc/renderers/gaussian2d/cpu.py, where the formulas are explained.
#include "compositing/sort.cuh"
#include "compositing/binning.cuh"
#include "gaussian2d/transform.cuh"

#define SPAN_SLACK 0.02f    // pixels; covers rounding, the cut at 1/255 decides per pixel
#define EVERYWHERE 1e9f
#define FARTHEST 1e-3f      // of the inverse depth of an intersection, in units of the centre's

struct Meeting { float x, y, u, v, z, on_surfel, on_screen; };  // pixel about the centre; u^2 + v^2, 2 distance^2

// Columns: centre (2), W (9), opacity; the ellipse alpha = 1/255 (6) and the low-pass disc; colour (3), normal (3), depth
// of the centre. With N = 3 features, the colour, or 7, of which the distortion of the centres' depths.
template <int N>
struct Surfel : ConstantFeatures<Surfel<N>, N> {
    static constexpr int COLUMNS = 28, PIXEL = 12, GEOMETRY = 19, MOMENTS = 12, DEPTH = N == 7 ? 6 : -1;
    static constexpr bool DISTORTION = N == 7;

    struct Geometry { float x, y, ellipse_x, ellipse_y, reach, slope, height, top, disc; };

    static __device__ __forceinline__ Geometry load(const float* row) {
        return {row[0], row[1], row[12], row[13], row[14], row[15], row[16], row[17], row[18]};
    }

    static __device__ __forceinline__ void x_range(const Geometry& p, float& low, float& high) {
        low = p.x + fminf(p.ellipse_x - p.reach, -p.disc);
        high = p.x + fmaxf(p.ellipse_x + p.reach, p.disc);
    }

    // The lowest and highest y of an ellipse about x over [left, right]: each branch is extreme at the point nearest to
    // its top.
    static __device__ __forceinline__ void branches(float x, float left, float right, float reach, float slope,
                                                    float height, float top, float& low, float& high) {
        left -= x;
        right -= x;
        if (left > reach || right < -reach) { low = EVERYWHERE; high = -EVERYWHERE; return; }
        left = fmaxf(left, -reach);
        right = fminf(right, reach);
        float e = fminf(fmaxf(top, left), right), share = e / reach;
        high = height * sqrtf(fmaxf(1.f - share * share, 0.f)) + slope * e;
        e = fminf(fmaxf(-top, left), right);
        share = e / reach;
        low = slope * e - height * sqrtf(fmaxf(1.f - share * share, 0.f));
    }

    static __device__ __forceinline__ void span(const Geometry& p, float x0, float x1, float& low, float& high) {
        if (p.reach >= EVERYWHERE) { low = -EVERYWHERE; high = EVERYWHERE; return; }
        const float left = x0 - p.x, right = x1 - p.x;
        float disc_low, disc_high;
        branches(p.ellipse_x, left, right, p.reach, p.slope, p.height, p.top, low, high);
        if (low <= high) { low += p.ellipse_y; high += p.ellipse_y; }
        branches(0.f, left, right, p.disc, 0.f, p.disc, 0.f, disc_low, disc_high);
        low = fminf(low, disc_low);
        high = fmaxf(high, disc_high);
        if (low > high) { low = 0.f; high = -0.5f; return; }
        low += p.y - SPAN_SLACK;
        high += p.y + SPAN_SLACK;
    }

    // Where the ray of a pixel meets the surfel: (u, v, 1) / z = W (x, y, 1).
    static __device__ __forceinline__ Meeting meeting(const float* q, float px, float py) {
        const float x = px - q[0], y = py - q[1], z = 1.f / inverse_depth(q, x, y);
        const float u = fmaf(q[2], x, fmaf(q[3], y, q[4])) * z, v = fmaf(q[5], x, fmaf(q[6], y, q[7])) * z;
        return {x, y, u, v, z, fmaf(u, u, v * v), 2.f * fmaf(x, x, y * y)};
    }

    static __device__ __forceinline__ float inverse_depth(const float* q, float x, float y) {
        return fmaf(q[8], x, fmaf(q[9], y, q[10]));
    }

    // A surfel seen edge-on keeps the width of a pixel.
    static __device__ __forceinline__ float alpha(const float* q, float px, float py) {
        const Meeting p = meeting(q, px, py);
        return q[11] * __expf(-0.5f * (p.on_surfel < p.on_screen ? p.on_surfel : p.on_screen));
    }

    // Terms of the opacity, the centre (2) and W (9), with the gradient v_inverse of the inverse depth.
    static __device__ __forceinline__ void moments(const float* q, float px, float py, float g, float v_inverse,
                                                   float* m) {
        const Meeting p = meeting(q, px, py);
        float a = 0.f, b = 0.f, c = v_inverse, shift = 2.f * g;
        if (p.on_surfel < p.on_screen) {
            const float h = g * p.z;
            a = -h * p.u;
            b = -h * p.v;
            c += h * p.on_surfel;
            shift = 0.f;
        }
        m[0] = g; m[1] = shift * p.x; m[2] = shift * p.y;
        m[3] = a; m[4] = a * p.x; m[5] = a * p.y;
        m[6] = b; m[7] = b * p.x; m[8] = b * p.y;
        m[9] = c; m[10] = c * p.x; m[11] = c * p.y;
    }

    static __device__ __forceinline__ void moments(const float* q, float px, float py, float g, float* m) {
        moments(q, px, py, g, 0.f, m);
    }
};

// With the depth at which the ray meets the surfel: channels are colour, normal, this depth, its inverse r, and r^2.
struct IntersectedSurfel : Surfel<7> {
    static constexpr int CHANNELS = 9;
    static constexpr bool DISTORTION = false;

    // 1/z of the intersection, or of the centre where there is none: behind the camera, or beyond all bounds.
    static __device__ __forceinline__ float seen_inverse_depth(const float* q, float px, float py, bool& meets) {
        const float r = inverse_depth(q, px - q[0], py - q[1]), center = 1.f / q[PIXEL + 6];
        meets = r > FARTHEST * center;
        return meets ? r : center;
    }

    static __device__ __forceinline__ void features(const float* q, float px, float py, float* c) {
        bool meets;
        const float r = seen_inverse_depth(q, px, py, meets);
#pragma unroll
        for (int k = 0; k < 6; ++k) c[k] = q[PIXEL + k];
        c[6] = 1.f / r; c[7] = r; c[8] = r * r;
    }

    static __device__ __forceinline__ void terms(const float* q, float px, float py, float g, float w, const float* v,
                                                 float* m) {
        bool meets;
        const float r = seen_inverse_depth(q, px, py, meets);
        const float v_r = w * (v[7] + 2.f * r * v[8] - v[6] / (r * r));
        moments(q, px, py, g, meets ? v_r : 0.f, m);
#pragma unroll
        for (int k = 0; k < 6; ++k) m[MOMENTS + k] = w * v[k];
        m[MOMENTS + 6] = meets ? 0.f : -v_r * r * r;
    }
};

// Lay splats out for the compositor. Launch: ceil(n / 256) blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
pack(long long n, const float2* __restrict__ means2d, const float* __restrict__ inverses,
     const float* __restrict__ opacities, const float* __restrict__ regions, const float* __restrict__ colors,
     const float* __restrict__ normals, const float* __restrict__ depths, float* __restrict__ table) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    float* row = table + Surfel<7>::COLUMNS * s;
    const float* region = regions + 5 * s;
    row[0] = means2d[s].x; row[1] = means2d[s].y;
#pragma unroll
    for (int k = 0; k < 9; ++k) row[2 + k] = inverses[9 * s + k];
    row[11] = opacities[s];
    row[12] = region[0]; row[13] = region[1];
    const double xx = region[2], xy = region[3], yy = region[4];
    const bool bounded = xx < INFINITE, wide_enough = bounded && xx > 0.;
    row[14] = bounded ? (float)(sqrt(xx) * 1.001 + 0.01) : EVERYWHERE;
    row[15] = wide_enough ? (float)(xy / xx) : 0.f;
    row[16] = bounded ? (float)(sqrt(wide_enough ? fmax(yy - xy * xy / xx, 0.) : 0.) * 1.001 + 0.01) : EVERYWHERE;
    row[17] = bounded && yy > 0. ? (float)(xy / sqrt(yy)) : 0.f;
    row[18] = (float)disc_of(opacities[s]);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        row[19 + k] = colors[3 * s + k];
        row[22 + k] = normals[3 * s + k];
    }
    row[25] = depths[s];
}

// Boxes x0, y0, x1, y1 in pixels that hold every alpha >= 1/255. Launch as pack.
extern "C" __global__ void __launch_bounds__(256)
footprints(long long n, const float2* __restrict__ means2d, const float* __restrict__ regions,
           const float* __restrict__ opacities, float4* __restrict__ boxes) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    const double x = means2d[s].x, y = means2d[s].y, ex = regions[5 * s], ey = regions[5 * s + 1];
    const double half_x = sqrt(fmax((double)regions[5 * s + 2], 0.)) * 1.001 + 0.02;
    const double half_y = sqrt(fmax((double)regions[5 * s + 4], 0.)) * 1.001 + 0.02, disc = disc_of(opacities[s]);
    boxes[s] = make_float4((float)(x + fmin(ex - half_x, -disc)), (float)(y + fmin(ey - half_y, -disc)),
                           (float)(x + fmax(ex + half_x, disc)), (float)(y + fmax(ey + half_y, disc)));
}

// Turn summed terms into gradients of the splat fields; that of the centre is of a shift of the whole splat. Launch as
// pack.
extern "C" __global__ void __launch_bounds__(256)
finish(long long n, int features, const float* __restrict__ table, const float* __restrict__ sums,
       float2* __restrict__ v_means2d, float* __restrict__ v_inverses, float* __restrict__ v_opacities,
       float* __restrict__ v_colors, float* __restrict__ v_normals, float* __restrict__ v_depths) {
    const long long s = blockIdx.x * 256ll + threadIdx.x;
    if (s >= n) return;
    const float* row = table + Surfel<7>::COLUMNS * s;
    const float* sum = sums + s * (12 + features);
    float x = sum[1], y = sum[2];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const float last = sum[3 + 3 * k];
        store3(v_inverses, 3 * s + k, {sum[4 + 3 * k], sum[5 + 3 * k], last});
        x -= row[2 + 3 * k] * last;
        y -= row[3 + 3 * k] * last;
    }
    v_means2d[s] = make_float2(x, y);
    v_opacities[s] = row[11] > 0.f ? sum[0] / row[11] : 0.f;
    const bool with_maps = features == 7;
    store3(v_colors, s, {sum[12], sum[13], sum[14]});
    store3(v_normals, s, with_maps ? Vec3{sum[15], sum[16], sum[17]} : Vec3{0.f, 0.f, 0.f});
    v_depths[s] = with_maps ? sum[18] : 0.f;
}
