// Which patches of a view its splats reach, as gaian_hpc/training/unit.py: boxes x0, y0, x1, y1 in pixels against the
// columns and rows of patches, whose edges xs (nx + 1) and ys (ny + 1) are. Patches are counted row by row.
// One thread a splat; launch: ceil(n / 256) blocks of 256.
#include "compositing/sort.cuh"

#define TILE 16
#define LOCAL_PATCHES 1024  // of a grid whose sums a block keeps to itself

struct Interval { int first, last; };  // half-open

// The patches along one axis that [low, high] touches.
__device__ __forceinline__ Interval touched(float low, float high, const float* edges, int n) {
    int first = 0;
    while (first < n && edges[first + 1] < low) ++first;
    int last = first;
    while (last < n && edges[last] <= high) ++last;
    return {first, last};
}

// Tiles of the patch at [start, stop) that [low, high] touches, at least one.
__device__ __forceinline__ int tiles_along(float low, float high, float start, float stop) {
    const int a = (int)(fmaxf(low, start) - start) / TILE, b = (int)(fminf(high, stop) - start) / TILE;
    return max(b - a, 0) + 1;
}

// Count the patches of each splat, and add the (tile, splat) pairs of each patch to tiles (nx * ny).
extern "C" __global__ void __launch_bounds__(256)
count_reach(long long n, const float4* __restrict__ boxes, const float* __restrict__ xs, int nx,
            const float* __restrict__ ys, int ny, long long* __restrict__ counts, unsigned long long* __restrict__ tiles) {
    __shared__ unsigned long long own[LOCAL_PATCHES];
    const bool local = nx * ny <= LOCAL_PATCHES;
    if (local) {
        for (int p = threadIdx.x; p < nx * ny; p += 256) own[p] = 0;
        __syncthreads();
    }
    unsigned long long* sums = local ? own : tiles;
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) {
        const float4 box = boxes[i];
        const Interval columns = touched(box.x, box.z, xs, nx), rows = touched(box.y, box.w, ys, ny);
        counts[i] = (long long)(columns.last - columns.first) * (rows.last - rows.first);
        for (int y = rows.first; y < rows.last; ++y) {
            const unsigned long long high = tiles_along(box.y, box.w, ys[y], ys[y + 1]);
            for (int x = columns.first; x < columns.last; ++x)
                atomicAdd(&sums[y * nx + x], high * tiles_along(box.x, box.z, xs[x], xs[x + 1]));
        }
    }
    if (!local) return;
    __syncthreads();
    for (int p = threadIdx.x; p < nx * ny; p += 256)
        if (own[p]) atomicAdd(&tiles[p], own[p]);
}

// Write the patch and the row of each pair; ends is the inclusive sum of counts.
extern "C" __global__ void __launch_bounds__(256)
list_reach(long long n, const float4* __restrict__ boxes, const float* __restrict__ xs, int nx,
           const float* __restrict__ ys, int ny, const long long* __restrict__ counts,
           const long long* __restrict__ ends, unsigned* __restrict__ patches, unsigned* __restrict__ owners) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const float4 box = boxes[i];
    const Interval columns = touched(box.x, box.z, xs, nx), rows = touched(box.y, box.w, ys, ny);
    long long at = ends[i] - counts[i];
    for (int y = rows.first; y < rows.last; ++y)
        for (int x = columns.first; x < columns.last; ++x, ++at) {
            patches[at] = (unsigned)(y * nx + x);
            owners[at] = (unsigned)i;
        }
}

// How many of the n sorted pairs belong to each patch. One thread a patch.
extern "C" __global__ void __launch_bounds__(256)
patch_sizes(long long n_patches, long long n, const unsigned* __restrict__ sorted, long long* __restrict__ sizes) {
    const long long p = blockIdx.x * 256ll + threadIdx.x;
    if (p >= n_patches) return;
    long long found[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        long long low = 0, high = n;
        while (low < high) {
            const long long middle = (low + high) / 2;
            if (sorted[middle] < (unsigned)(p + k)) low = middle + 1; else high = middle;
        }
        found[k] = low;
    }
    sizes[p] = found[1] - found[0];
}
