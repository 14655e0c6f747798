// The photometric loss of 3DGS and its gradient, patch by patch (gaian_hpc/training/loss.py has the derivation).
//
// Both kernels take a 16 x 16 tile and one channel a block: a separable 11 x 11 filter in shared memory.
// Launch: ceil(width / 16) * ceil(height / 16) * channels blocks of 256, of the maps and of the patch.
#include "common/warp.cuh"

#define RADIUS 5
#define TAPS (2 * RADIUS + 1)
#define SIDE 16
#define WIDE (SIDE + 2 * RADIUS)
#define SSIM_C1 (0.01f * 0.01f)
#define SSIM_C2 (0.03f * 0.03f)

__device__ __forceinline__ float window(int k) {  // Gaussian of sigma 1.5, normalised
    const float taps[RADIUS + 1] = {0.26601171f, 0.21300554f, 0.10936069f, 0.036000773f, 0.007598758f, 0.0010283801f};
    return taps[k < 0 ? -k : k];
}

// Filter columns of a WIDE x SIDE plane at this thread's pixel.
__device__ __forceinline__ float filter_column(const float (*rows)[SIDE], int y, int x) {
    float s = 0.f;
#pragma unroll
    for (int k = -RADIUS; k <= RADIUS; ++k) s += window(k) * rows[y + RADIUS + k][x];
    return s;
}

// Write d SSIM/d(mean of x), d(mean of x^2), d(mean of xy), (3, C, map_height, map_width), zero outside of the region
// (C, height, width) in which map pixel (0, 0) lies at (row0, column0); and each block's sum of SSIM over the patch,
// which is the map without its margin of RADIUS.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
ssim_maps(const float* __restrict__ x, const float* __restrict__ y, int height, int width, int row0, int column0,
          int map_height, int map_width, int channels, float* __restrict__ maps, float* __restrict__ sums) {
    __shared__ float a[WIDE][WIDE], b[WIDE][WIDE];
    __shared__ float rows[4][WIDE][SIDE];
    const int tiles_x = (map_width + SIDE - 1) / SIDE, tiles_y = (map_height + SIDE - 1) / SIDE;
    const int tile = blockIdx.x % (tiles_x * tiles_y), c = blockIdx.x / (tiles_x * tiles_y);
    const int x0 = tile % tiles_x * SIDE, y0 = tile / tiles_x * SIDE, t = threadIdx.x;
    for (int i = t; i < WIDE * WIDE; i += SIDE * SIDE) {
        const int row = row0 + y0 + i / WIDE - RADIUS, column = column0 + x0 + i % WIDE - RADIUS;
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        const long long at = ((long long)c * height + row) * width + column;
        a[i / WIDE][i % WIDE] = inside ? x[at] : 0.f;
        b[i / WIDE][i % WIDE] = inside ? y[at] : 0.f;
    }
    __syncthreads();
    for (int i = t; i < WIDE * SIDE; i += SIDE * SIDE) {
        const int r = i / SIDE, j = i % SIDE;
        float mx = 0.f, my = 0.f, square = 0.f, product = 0.f;
#pragma unroll
        for (int k = 0; k < TAPS; ++k) {
            const float w = window(k - RADIUS), p = a[r][j + k], q = b[r][j + k];
            mx += w * p; my += w * q; square += w * (p * p + q * q); product += w * (p * q);
        }
        rows[0][r][j] = mx; rows[1][r][j] = my; rows[2][r][j] = square; rows[3][r][j] = product;
    }
    __syncthreads();
    const int ty = t / SIDE, tx = t % SIDE, my_row = y0 + ty, my_column = x0 + tx;
    const float mx = filter_column(rows[0], ty, tx), my = filter_column(rows[1], ty, tx);
    const float square = filter_column(rows[2], ty, tx), product = filter_column(rows[3], ty, tx);
    const float mxy = mx * my, mm = mx * mx + my * my;
    const float a1 = 2.f * mxy + SSIM_C1, a2 = 2.f * (product - mxy) + SSIM_C2;
    const float b1 = mm + SSIM_C1, b2 = square - mm + SSIM_C2, r = 1.f / (b1 * b2);
    const float value = a1 * a2 * r, by_square = -value / b2, by_product = 2.f * a1 * r;
    const float by_mean = 2.f * my * a2 * r - 2.f * mx * value / b1 - 2.f * mx * by_square - my * by_product;
    const int row = row0 + my_row, column = column0 + my_column;
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    if (my_row < map_height && my_column < map_width) {
        const long long plane = (long long)map_height * map_width, at = (long long)my_row * map_width + my_column;
        maps[c * plane + at] = inside ? by_mean : 0.f;
        maps[(channels + c) * plane + at] = inside ? by_square : 0.f;
        maps[(2 * channels + c) * plane + at] = inside ? by_product : 0.f;
    }
    const bool counts = my_row >= RADIUS && my_row < map_height - RADIUS && my_column >= RADIUS &&
                        my_column < map_width - RADIUS;
    const float total = block_sum(counts ? value : 0.f);
    if (t == 0) sums[blockIdx.x] = total;
}

// Write the gradient at the patch's pixels, which begin at (top, left) of the region, and each block's sum of |x - y|.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
loss_gradient(const float* __restrict__ x, const float* __restrict__ y, int height, int width, int top, int left,
              int patch_height, int patch_width, int channels, const float* __restrict__ maps, float l1_scale,
              float ssim_scale, float* __restrict__ v_image, float* __restrict__ sums) {
    __shared__ float source[WIDE][WIDE];
    __shared__ float rows[WIDE][SIDE];
    const int tiles_x = (patch_width + SIDE - 1) / SIDE, tiles_y = (patch_height + SIDE - 1) / SIDE;
    const int tile = blockIdx.x % (tiles_x * tiles_y), c = blockIdx.x / (tiles_x * tiles_y);
    const int x0 = tile % tiles_x * SIDE, y0 = tile / tiles_x * SIDE, t = threadIdx.x;
    const int ty = t / SIDE, tx = t % SIDE;
    const int map_height = patch_height + 2 * RADIUS, map_width = patch_width + 2 * RADIUS;
    float means[3];
    for (int m = 0; m < 3; ++m) {
        const float* map = maps + (long long)(m * channels + c) * map_height * map_width;
        __syncthreads();
        for (int i = t; i < WIDE * WIDE; i += SIDE * SIDE) {
            const int row = y0 + i / WIDE, column = x0 + i % WIDE;
            source[i / WIDE][i % WIDE] = row < map_height && column < map_width ? map[(long long)row * map_width + column]
                                                                                : 0.f;
        }
        __syncthreads();
        for (int i = t; i < WIDE * SIDE; i += SIDE * SIDE) {
            float s = 0.f;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) s += window(k - RADIUS) * source[i / SIDE][i % SIDE + k];
            rows[i / SIDE][i % SIDE] = s;
        }
        __syncthreads();
        means[m] = filter_column(rows, ty, tx);
    }
    const int row = y0 + ty, column = x0 + tx;
    float difference = 0.f;
    if (row < patch_height && column < patch_width) {
        const long long at = ((long long)c * height + top + row) * width + left + column;
        const float p = x[at], q = y[at];
        difference = fabsf(p - q);
        const float sign = (float)(p > q) - (float)(p < q);
        v_image[((long long)c * patch_height + row) * patch_width + column] =
            l1_scale * sign - ssim_scale * (means[0] + 2.f * p * means[1] + q * means[2]);
    }
    const float total = block_sum(difference);
    if (t == 0) sums[blockIdx.x] = total;
}
