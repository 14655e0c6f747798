// Warp primitives for 32 lanes (NVIDIA, RDNA) and 64 lanes (CDNA); the host passes -DWARP_SIZE.
#pragma once
#ifndef WARP_SIZE
#define WARP_SIZE 32
#endif
#if WARP_SIZE == 64
typedef unsigned long long lane_mask;
#define POPCOUNT(x) __popcll(x)
#define FULL_MASK (~0ull)
#else
typedef unsigned int lane_mask;
#define POPCOUNT(x) __popc(x)
#define FULL_MASK 0xffffffffu
#endif
#if defined(__HIPCC__) || defined(__HIP__) || defined(__HIPCC_RTC__)  // ROCm has the _sync forms from version 7 only
#define SHUFFLE_XOR(v, d) __shfl_xor(v, d)
#define BALLOT(p) ((lane_mask)__ballot(p))
#define ANY(p) __any(p)
#define SYNC_WARP() __builtin_amdgcn_wave_barrier()
#else
#define SHUFFLE_XOR(v, d) __shfl_xor_sync(FULL_MASK, v, d)
#define BALLOT(p) __ballot_sync(FULL_MASK, p)
#define ANY(p) __any_sync(FULL_MASK, p)
#define SYNC_WARP() __syncwarp()
#endif

// Sum each of N values over all lanes; lane l gets the sum of value l mod N. At each halving a lane keeps the half of
// the values that a bit of its number selects and gives the other half away: N - 1 + log2(WARP_SIZE / N) shuffles
// where a reduction of one value after the other takes N log2(WARP_SIZE). The order of additions is fixed.
template <int N>
__device__ __forceinline__ float sum_transposed(float (&v)[N], int lane) {
    static_assert(N > 0 && (N & (N - 1)) == 0 && N <= WARP_SIZE, "N is a power of two, at most a warp");
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2) {
        const bool upper = (lane & half) != 0;
#pragma unroll
        for (int k = 0; k < half; ++k) {
            const float kept = upper ? v[k + half] : v[k];
            const float given = upper ? v[k] : v[k + half];
            v[k] = kept + SHUFFLE_XOR(given, half);
        }
    }
#pragma unroll
    for (int d = N; d < WARP_SIZE; d *= 2) v[0] += SHUFFLE_XOR(v[0], d);
    return v[0];
}

// Sum a value over the block in a fixed order; the result is valid in thread 0. Launch: any multiple of a warp.
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float per_warp[1024 / WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE;
    for (int d = WARP_SIZE / 2; d > 0; d /= 2) v += SHUFFLE_XOR(v, d);
    if (lane == 0) per_warp[threadIdx.x / WARP_SIZE] = v;
    __syncthreads();
    float total = 0.f;
    if (threadIdx.x == 0)
        for (int w = 0; w < (int)(blockDim.x / WARP_SIZE); ++w) total += per_warp[w];
    __syncthreads();
    return total;
}
