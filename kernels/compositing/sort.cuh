// Stable radix sort of 32-bit keys with 32-bit values, 8 bits a pass, least significant first.
//
// A pass is radix_count, an exclusive sum of its table by the host's array library, and radix_scatter. A block takes
// SORT_ITEMS consecutive pairs, each warp a run of them, so that ranks within a digit follow the order of the input.
#pragma once
#include "common/warp.cuh"

#define SORT_THREADS 256
#define SORT_ROUNDS 8
#define SORT_ITEMS (SORT_THREADS * SORT_ROUNDS)
#define SORT_WARPS (SORT_THREADS / WARP_SIZE)
#define RADIX 256

// Count each block's digits into counts[digit * blocks + block].
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
radix_count(long long n, const unsigned* __restrict__ keys, int shift, long long* __restrict__ counts) {
    __shared__ int bins[RADIX];
    bins[threadIdx.x] = 0;
    __syncthreads();
    const long long first = (long long)blockIdx.x * SORT_ITEMS;
    for (int k = threadIdx.x; k < SORT_ITEMS && first + k < n; k += SORT_THREADS)
        atomicAdd(&bins[keys[first + k] >> shift & (RADIX - 1)], 1);
    __syncthreads();
    counts[(long long)threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

// Move pairs to their places; ends is the inclusive sum of counts, which is where each block's share of a digit ends.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
radix_scatter(long long n, const unsigned* __restrict__ keys, const unsigned* __restrict__ values, int shift,
              const long long* __restrict__ counts, const long long* __restrict__ ends, unsigned* __restrict__ keys_out,
              unsigned* __restrict__ values_out) {
    __shared__ int seen[SORT_WARPS][RADIX];
    __shared__ long long base[RADIX];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    for (int k = lane; k < RADIX; k += WARP_SIZE) seen[warp][k] = 0;
    SYNC_WARP();
    const long long first = (long long)blockIdx.x * SORT_ITEMS + warp * (SORT_ROUNDS * WARP_SIZE) + lane;
    int places[SORT_ROUNDS];  // rank among the warp's pairs of one digit, and the digit, in one register
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; ++r) {
        const long long i = first + r * WARP_SIZE;
        const bool valid = i < n;
        const int digit = valid ? keys[i] >> shift & (RADIX - 1) : 0;
        lane_mask peers = BALLOT(valid);  // lanes with this digit
#pragma unroll
        for (int b = 0; b < 8; ++b) {
            const bool set = digit >> b & 1;
            const lane_mask with = BALLOT(set);
            peers &= set ? with : ~with;
        }
        const lane_mask before = peers & (((lane_mask)1 << lane) - 1);
        places[r] = (seen[warp][digit] + POPCOUNT(before)) * RADIX + digit;
        SYNC_WARP();  // all lanes have read before one of each digit adds
        if (valid && before == 0) seen[warp][digit] += POPCOUNT(peers);
        SYNC_WARP();
    }
    __syncthreads();
    int running = 0;
    for (int w = 0; w < SORT_WARPS; ++w) {
        const int own = seen[w][threadIdx.x];
        seen[w][threadIdx.x] = running;
        running += own;
    }
    const long long place = (long long)threadIdx.x * gridDim.x + blockIdx.x;
    base[threadIdx.x] = ends[place] - counts[place];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; ++r) {
        const long long i = first + r * WARP_SIZE;
        if (i >= n) continue;
        const int digit = places[r] % RADIX;
        const long long to = base[digit] + seen[warp][digit] + places[r] / RADIX;
        keys_out[to] = keys[i];
        values_out[to] = values[i];
    }
}

// Keys whose order as integers is that of float depths, and the rows as values.
extern "C" __global__ void __launch_bounds__(256)
depth_keys(long long n, const float* __restrict__ depths, unsigned* __restrict__ keys, unsigned* __restrict__ rows) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const unsigned bits = __float_as_uint(depths[i]);
    keys[i] = bits >> 31 ? ~bits : bits | 0x80000000u;
    rows[i] = (unsigned)i;
}
