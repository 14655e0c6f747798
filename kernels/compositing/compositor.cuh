// The tile compositor, written once for every method: front-to-back blending of a tile's splats, and its gradient.
//
// A Method is a struct of
//   COLUMNS, PIXEL, GEOMETRY, MOMENTS   columns of its table; of them: what alpha reads, all before the features; terms
//   FEATURES, CHANNELS                  columns of features; planes blended of them, alike if ConstantFeatures is a base
//   DEPTH, DISTORTION                   the channel of depths, -1 for none: it makes one more plane, the median, that of
//                                       the last contribution in front of which more than half of the light is left;
//                                       and whether there is a plane of distortion behind it (Barron et al. 2022,
//                                       equation 15): 2 sum_i w_i sum_(j<i) w_j (z_i - z_j), for depths that ascend
//   Geometry load(row)                  what x_range and span read
//   x_range(p, low, high), span(p, x0, x1, top, bottom)   where alpha can reach 1/255
//   alpha(q, px, py)                    opacity at a pixel centre, from q, the first PIXEL columns and the features
//   features(q, px, py, c)              the channels c to blend there
//   terms(q, px, py, g, w, v, m)        terms m whose sums over pixels give the gradients of the geometry and, behind
//                                       them, of the features, for g = alpha dL/dalpha, the weight w and v = dL/dc
//
// Launch: one block of 256 threads a tile; thread t has pixel (t % 16, t / 16), so that a warp has whole rows.
#pragma once
#include "common/warp.cuh"

#define TILE 16
#define TILE_PIXELS 256
#define TILE_WARPS (TILE_PIXELS / WARP_SIZE)
#define ALPHA_MAX 0.99f
#define ALPHA_MIN (1.f / 255.f)
#define TRANSMITTANCE_MIN 1e-4f

__host__ __device__ constexpr int power_of_two_above(int n) { int p = 1; while (p < n) p *= 2; return p; }

// Splats of a backward batch: as many as keep the sums of the warps within 16 KiB of shared memory.
__host__ __device__ constexpr int backward_batch(int n_terms) { return n_terms > 16 ? 16 : 32; }

// Blocks that a multiprocessor is to hold at once: four with 64 registers a thread, or three with 80.
__host__ __device__ constexpr int blocks_at_once(int n_pixel_columns) { return n_pixel_columns > 8 ? 3 : 4; }

// Base of a Method whose N channels do not depend on the pixel; moments(q, px, py, g, m) are its terms of the geometry.
template <class Method, int N>
struct ConstantFeatures {
    static constexpr int FEATURES = N, CHANNELS = N, DEPTH = -1;
    static constexpr bool DISTORTION = false;

    static __device__ __forceinline__ void features(const float* q, float, float, float* c) {
#pragma unroll
        for (int k = 0; k < N; ++k) c[k] = q[Method::PIXEL + k];
    }

    static __device__ __forceinline__ void terms(const float* q, float px, float py, float g, float w, const float* v,
                                                 float* m) {
        Method::moments(q, px, py, g, m);
#pragma unroll
        for (int k = 0; k < N; ++k) m[Method::MOMENTS + k] = w * v[k];
    }
};

// A bit for each row of the tile that a splat can reach.
template <class Method>
__device__ __forceinline__ unsigned reached_rows(const float* row, int x, int y) {
    float top, bottom;
    Method::span(Method::load(row), x + 0.5f, x + 15.5f, top, bottom);
    const float low = fmaxf(ceilf(top - y - 0.5f), 0.f), high = fminf(floorf(bottom - y + 0.5f), (float)TILE);
    if (!(low < high)) return 0;
    return (0xffffu >> (TILE - (int)high)) & (0xffffu << (int)low);
}

// What a pixel reads of a splat, in shared memory as float4, so that a warp reads one line for all lanes.
template <class Method>
struct Batch {
    static constexpr int WIDTH = Method::PIXEL + Method::FEATURES, QUADS = (WIDTH + 3) / 4;

    static __device__ __forceinline__ void fetch(const float* row, float4* to, int stride) {
        float v[QUADS * 4] = {};
#pragma unroll
        for (int k = 0; k < Method::PIXEL; ++k) v[k] = row[k];
#pragma unroll
        for (int k = 0; k < Method::FEATURES; ++k) v[Method::PIXEL + k] = row[Method::GEOMETRY + k];
#pragma unroll
        for (int q = 0; q < QUADS; ++q) to[q * stride] = make_float4(v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]);
    }

    static __device__ __forceinline__ void read(const float4* from, int stride, float* v) {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const float4 f = from[q * stride];
            v[4 * q] = f.x; v[4 * q + 1] = f.y; v[4 * q + 2] = f.z; v[4 * q + 3] = f.w;
        }
    }
};

// Write the planes, the final transmittance and the rank of the last contributor, 0 for none.
template <class Method>
__global__ void __launch_bounds__(TILE_PIXELS, blocks_at_once(Method::PIXEL))
composite(int n_x, int x_origin, int y_origin, int width, int height, const long long* __restrict__ offsets,
          const unsigned* __restrict__ items, const float* __restrict__ table, float* __restrict__ planes,
          float* __restrict__ transmittance, int* __restrict__ last) {
    typedef Batch<Method> B;
    constexpr int CHANNELS = Method::CHANNELS;
    __shared__ float4 splats[B::QUADS][TILE_PIXELS];
    __shared__ unsigned rows[TILE_PIXELS];
    const int t = threadIdx.x, x0 = (int)blockIdx.x % n_x * TILE, y0 = (int)blockIdx.x / n_x * TILE;
    const int x = x0 + t % TILE, row = t / TILE, y = y0 + row;
    const float px = x_origin + x + 0.5f, py = y_origin + y + 0.5f;
    const bool inside = x < width && y < height;
    const long long first = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
    float T = 1.f, sum[CHANNELS] = {}, median = 0.f, distortion = 0.f;
    int contributor = 0;
    bool done = !inside;
    for (long long base = first; base < end; base += TILE_PIXELS) {
        if (__syncthreads_count(done) == TILE_PIXELS) break;
        if (base + t < end) {
            const float* source = table + (long long)items[base + t] * Method::COLUMNS;
            B::fetch(source, &splats[0][t], TILE_PIXELS);
            rows[t] = reached_rows<Method>(source, x_origin + x0, y_origin + y0);
        }
        __syncthreads();
        const int n = (int)min((long long)TILE_PIXELS, end - base);
        for (int j = 0; j < n && !done; ++j) {
            if (!(rows[j] >> row & 1)) continue;
            float v[B::QUADS * 4];
            B::read(&splats[0][j], TILE_PIXELS, v);
            const float alpha = fminf(Method::alpha(v, px, py), ALPHA_MAX);
            if (!(alpha >= ALPHA_MIN)) continue;
            const float next = T * (1.f - alpha);
            if (!(next > TRANSMITTANCE_MIN)) { done = true; continue; }
            const float w = alpha * T;
            float f[CHANNELS];
            Method::features(v, px, py, f);
            if constexpr (Method::DISTORTION)
                distortion += 2.f * w * (f[Method::DEPTH] * (1.f - T) - sum[Method::DEPTH]);
            if constexpr (Method::DEPTH >= 0) median = T > 0.5f ? f[Method::DEPTH] : median;
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) sum[c] += w * f[c];
            T = next;
            contributor = (int)(base - first) + j + 1;
        }
    }
    if (!inside) return;
    const long long pixel = (long long)y * width + x, size = (long long)width * height;
    transmittance[pixel] = T;
    last[pixel] = contributor;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) planes[c * size + pixel] = sum[c];
    if constexpr (Method::DEPTH >= 0) planes[CHANNELS * size + pixel] = median;
    if constexpr (Method::DISTORTION) planes[(CHANNELS + 1) * size + pixel] = distortion;
}

// Sum the terms of each splat over pixels, (rows, MOMENTS + FEATURES). The gradient of a median has no effect.
//
// Splats are taken back to front in batches. A warp sums the terms of its pixels by shuffles, the block adds its
// warps in order, and writes one number per pair and term: into the pair's own row if DETERMINISTIC, else atomically
// into the splat's row, which must be zero before.
template <class Method, bool DETERMINISTIC>
__global__ void __launch_bounds__(TILE_PIXELS, blocks_at_once(Method::PIXEL))
composite_vjp(int n_x, int x_origin, int y_origin, int width, int height, const long long* __restrict__ offsets,
              const unsigned* __restrict__ items, const unsigned* __restrict__ targets, const float* __restrict__ table,
              const float* __restrict__ planes, const float* __restrict__ v_planes, const float* __restrict__ v_alpha,
              const float* __restrict__ transmittance, const int* __restrict__ last, float* __restrict__ sums) {
    typedef Batch<Method> B;
    constexpr int CHANNELS = Method::CHANNELS, TERMS = Method::MOMENTS + Method::FEATURES;
    constexpr int PADDED = power_of_two_above(TERMS), BATCH = backward_batch(TERMS);
    __shared__ float4 splats[B::QUADS][BATCH];
    __shared__ unsigned rows[BATCH], hits[TILE_WARPS];
    __shared__ float partial[TILE_WARPS][BATCH * PADDED];
    __shared__ int depth;
    const int t = threadIdx.x, lane = t % WARP_SIZE, warp = t / WARP_SIZE;
    const int x0 = (int)blockIdx.x % n_x * TILE, y0 = (int)blockIdx.x / n_x * TILE;
    const int x = x0 + t % TILE, row = t / TILE, y = y0 + row;
    const float px = x_origin + x + 0.5f, py = y_origin + y + 0.5f;
    const long long pixel = (long long)y * width + x, size = (long long)width * height;
    float T = 1.f, behind = 0.f, v[CHANNELS] = {};
    float v_distortion = 0.f, beyond = 0.f, ends = 0.f;  // twice; sum of w z behind less the rest's; 1 + final T
    int reach = 0;
    if (x < width && y < height) {
        T = transmittance[pixel];
        reach = last[pixel];
        behind = -v_alpha[pixel] * T;  // d(1 - T)/d alpha = T/(1 - alpha) has the form of a splat behind everything
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) v[c] = v_planes[c * size + pixel];
        if constexpr (Method::DISTORTION) {
            v_distortion = 2.f * v_planes[(CHANNELS + 1) * size + pixel];
            beyond = -planes[Method::DEPTH * size + pixel];
            ends = 1.f + T;
        }
    }
    if (t == 0) depth = 0;
    __syncthreads();
    if (reach > 0) atomicMax(&depth, reach);
    __syncthreads();
    const long long first = offsets[blockIdx.x];
    for (int top = depth; top > 0; top -= BATCH) {  // ranks top - 1, top - 2, ...
        const int n = min(BATCH, top);
        if (t < n) {
            const float* source = table + (long long)items[first + top - 1 - t] * Method::COLUMNS;
            B::fetch(source, &splats[0][t], BATCH);
            rows[t] = reached_rows<Method>(source, x_origin + x0, y_origin + y0);
        }
        __syncthreads();
        unsigned hit_bits = 0;
        for (int j = 0; j < n; ++j) {
            bool hit = reach > top - 1 - j && (rows[j] >> row & 1);
            if (!ANY(hit)) continue;
            float q[B::QUADS * 4], terms[PADDED] = {};
            B::read(&splats[0][j], BATCH, q);
            const float raw = hit ? Method::alpha(q, px, py) : 0.f;
            const float alpha = fminf(raw, ALPHA_MAX);
            hit = alpha >= ALPHA_MIN;
            if (!ANY(hit)) continue;
            if (hit) {
                const float inverse = 1.f / (1.f - alpha), after = T;
                T *= inverse;  // in front of this splat
                const float w = alpha * T;
                float f[CHANNELS], u[CHANNELS], dot = 0.f;
                Method::features(q, px, py, f);
#pragma unroll
                for (int c = 0; c < CHANNELS; ++c) {
                    u[c] = v[c];
                    dot += v[c] * f[c];
                }
                if constexpr (Method::DISTORTION) {
                    const float z = f[Method::DEPTH], apart = ends - (T + after);  // weight in front less weight behind
                    dot += v_distortion * (z * apart + beyond + w * z);
                    u[Method::DEPTH] += v_distortion * apart;
                    beyond += 2.f * w * z;
                }
                const float g = raw <= ALPHA_MAX ? alpha * (T * dot - behind * inverse) : 0.f;
                behind += w * dot;
                Method::terms(q, px, py, g, w, u, terms);
            }
            const float total = sum_transposed<PADDED>(terms, lane);
            if (lane < PADDED) partial[warp][j * PADDED + lane] = total;
            hit_bits |= 1u << j;
        }
        if (lane == 0) hits[warp] = hit_bits;
        __syncthreads();
        for (int i = t; i < n * PADDED; i += TILE_PIXELS) {
            const int j = i / PADDED, term = i % PADDED;
            if (term >= TERMS) continue;
            float total = 0.f;
            bool any = false;
#pragma unroll
            for (int w = 0; w < TILE_WARPS; ++w)
                if (hits[w] >> j & 1) { total += partial[w][i]; any = true; }
            float* to = sums + (long long)targets[first + top - 1 - j] * TERMS + term;
            if (DETERMINISTIC) *to = total;
            else if (any) atomicAdd(to, total);
        }
        __syncthreads();
    }
}
