// Tile lists: which splats meet which 16 x 16 tiles of a patch, front to back.
//
// Splats are sorted by (depth, row) first and emit their tiles in that order; a stable sort of the pairs by tile then
// gives the order of the key (tile | depth, row) with 2 passes over the pairs in place of 6 or 8. Counts are 64-bit.
//
// A Method has load, x_range and span (see compositor.cuh). A convex splat meets a tile exactly if its span over the
// tile's columns meets the tile's rows. Launch, but for tile_offsets: ceil(n / 256) blocks of 256.
#pragma once
#include "compositing/compositor.cuh"

struct TileRange { int low, high; };  // half-open

// Tile columns of a patch that a splat meets.
template <class Method>
__device__ __forceinline__ TileRange tile_columns(const typename Method::Geometry& p, int n_x, int x_origin) {
    float low, high;
    Method::x_range(p, low, high);
    if (!(high >= low)) return {0, 0};
    const float from = floorf((low - x_origin - 0.5f) / TILE), to = floorf((high - x_origin - 0.5f) / TILE) + 1.f;
    return {(int)fminf(fmaxf(from, 0.f), (float)n_x), (int)fminf(fmaxf(to, 0.f), (float)n_x)};
}

// Tile rows that it meets in the tile column at x.
template <class Method>
__device__ __forceinline__ TileRange tile_rows(const typename Method::Geometry& p, int x, int y_origin, int n_y) {
    float top, bottom;
    Method::span(p, x + 0.5f, x + 15.5f, top, bottom);
    const float low = ceilf(top - y_origin - 0.5f), high = floorf(bottom - y_origin - 0.5f);  // rows of pixel centres
    if (!(low <= high) || high < 0.f || low >= (float)(TILE * n_y)) return {0, 0};
    return {(int)fmaxf(low, 0.f) / TILE, (int)fminf(high, (float)(TILE * n_y - 1)) / TILE + 1};
}

// Count the tiles of the k-th splat from the front.
template <class Method>
__global__ void __launch_bounds__(256)
count_tiles(long long n, const unsigned* __restrict__ order, const float* __restrict__ table, int n_x, int n_y,
            int x_origin, int y_origin, long long* __restrict__ counts) {
    const long long k = blockIdx.x * 256ll + threadIdx.x;
    if (k >= n) return;
    const typename Method::Geometry p = Method::load(table + (long long)order[k] * Method::COLUMNS);
    const TileRange columns = tile_columns<Method>(p, n_x, x_origin);
    long long hits = 0;
    for (int x = columns.low; x < columns.high; ++x) {
        const TileRange rows = tile_rows<Method>(p, x_origin + x * TILE, y_origin, n_y);
        hits += rows.high - rows.low;
    }
    counts[k] = hits;
}

// Write the tile and the splat of each pair; ends is the inclusive sum of counts.
template <class Method>
__global__ void __launch_bounds__(256)
emit_tiles(long long n, const unsigned* __restrict__ order, const float* __restrict__ table, int n_x, int n_y,
           int x_origin, int y_origin, const long long* __restrict__ counts, const long long* __restrict__ ends,
           unsigned* __restrict__ tiles, unsigned* __restrict__ owners) {
    const long long k = blockIdx.x * 256ll + threadIdx.x;
    if (k >= n || counts[k] == 0) return;
    const unsigned s = order[k];
    const typename Method::Geometry p = Method::load(table + (long long)s * Method::COLUMNS);
    const TileRange columns = tile_columns<Method>(p, n_x, x_origin);
    long long slot = ends[k] - counts[k];
    for (int x = columns.low; x < columns.high; ++x) {
        const TileRange rows = tile_rows<Method>(p, x_origin + x * TILE, y_origin, n_y);
        for (int y = rows.low; y < rows.high; ++y, ++slot) {
            tiles[slot] = (unsigned)(y * n_x + x);
            owners[slot] = s;
        }
    }
}

// Write where each tile's pairs begin in the sorted keys; offsets has one entry more than there are tiles.
extern "C" __global__ void __launch_bounds__(256)
tile_offsets(long long n, const unsigned* __restrict__ sorted_tiles, int n_tiles, long long* __restrict__ offsets) {
    const int tile = blockIdx.x * 256 + threadIdx.x;
    if (tile > n_tiles) return;
    long long low = 0, high = n;
    while (low < high) {
        const long long middle = (low + high) / 2;
        if (sorted_tiles[middle] < (unsigned)tile) low = middle + 1; else high = middle;
    }
    offsets[tile] = low;
}

// Add the rows that a splat's pairs wrote, in the order of its tiles. One thread a splat and column.
extern "C" __global__ void __launch_bounds__(256)
sum_slots(long long n, int width, const unsigned* __restrict__ order, const long long* __restrict__ counts,
          const long long* __restrict__ ends, const float* __restrict__ per_pair, float* __restrict__ sums) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n * width) return;
    const long long k = i / width;
    const int c = (int)(i % width);
    float total = 0.f;
    for (long long slot = ends[k] - counts[k]; slot < ends[k]; ++slot) total += per_pair[slot * width + c];
    sums[(long long)order[k] * width + c] = total;
}
