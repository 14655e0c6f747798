// What happens to points between two steps: Adam, activations, statistics for density control, Morton codes.
// One thread a value or a point; launch: ceil(n / 256) blocks of 256.

enum Activation { IDENTITY, EXP, SIGMOID };

struct Coefficients { float b1, a1, b2, a2, root_scale, eps; };

__device__ __forceinline__ float activate(int code, float raw) {
    if (code == EXP) return (float)exp((double)raw);
    if (code == SIGMOID) return (float)(1.0 / (1.0 + exp(-(double)raw)));
    return raw;
}

// Adam (Kingma and Ba 2015) with the derivative of the activation before and the activated value after.
//
// Row r of n = rows * columns values: stored row targets[r] takes gradient row sources[r], -1 for a gradient of zero.
// raw, first, second and values are (N, width), of which the leading columns move; gradient is (U, columns).
extern "C" __global__ void __launch_bounds__(256)
adam(long long n, int columns, int width, int code, const long long* __restrict__ targets,
     const long long* __restrict__ sources, const float* __restrict__ gradient, const float* __restrict__ rates,
     const float* __restrict__ coefficients, float* __restrict__ raw, float* __restrict__ first,
     float* __restrict__ second, float* __restrict__ values) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const int c = (int)(i % columns);
    const long long at = targets[i / columns] * width + c, source = sources[i / columns];
    const Coefficients k = {coefficients[0], coefficients[1], coefficients[2], coefficients[3], coefficients[4],
                            coefficients[5]};
    float g = source >= 0 ? gradient[source * columns + c] : 0.f;
    if (code == EXP) g *= values[at];
    else if (code == SIGMOID) g *= values[at] * (1.f - values[at]);
    const float m = k.b1 * first[at] + k.a1 * g, v = k.b2 * second[at] + k.a2 * (g * g);
    first[at] = m;
    second[at] = v;
    const float stored = raw[at] - rates[c] * (m / (sqrtf(v) * k.root_scale + k.eps));
    raw[at] = stored;
    if (code != IDENTITY) values[at] = activate(code, stored);
}

// The activated values of n stored ones.
extern "C" __global__ void __launch_bounds__(256)
activate_all(long long n, int code, const float* __restrict__ raw, float* __restrict__ values) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) values[i] = activate(code, raw[i]);
}

// Add the norm of a screen gradient in normalised device coordinates to grad_sum, and one to count. Rows are unique.
extern "C" __global__ void __launch_bounds__(256)
observe(long long n, const long long* __restrict__ rows, const float2* __restrict__ gradient, float half_width,
        float half_height, float* __restrict__ grad_sum, float* __restrict__ count) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const float gx = gradient[i].x * half_width, gy = gradient[i].y * half_height;
    grad_sum[rows[i]] += sqrtf(gx * gx + gy * gy);
    count[rows[i]] += 1.f;
}

__device__ __forceinline__ unsigned long long spread(unsigned long long x) {  // two zero bits between 21 bits
    x = (x | x << 32) & 0x1f00000000ffffull;
    x = (x | x << 16) & 0x1f0000ff0000ffull;
    x = (x | x << 8) & 0x100f00f00f00f00full;
    x = (x | x << 4) & 0x10c30c30c30c30c3ull;
    return (x | x << 2) & 0x1249249249249249ull;
}

// The place of each point on a Morton curve through the cube at low; those outside are moved to its faces.
extern "C" __global__ void __launch_bounds__(256)
morton_codes(long long n, const float* __restrict__ positions, double low_x, double low_y, double low_z, double side,
             unsigned long long* __restrict__ codes) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const double low[3] = {low_x, low_y, low_z};
    unsigned long long code = 0;
    for (int k = 0; k < 3; ++k) {
        const float p = positions[3 * i + k];
        const double scaled = ((p == p ? (double)p : 0.0) - low[k]) / side;
        code |= spread((unsigned long long)(fmin(fmax(scaled, 0.0), 1.0) * 2097151.0)) << k;
    }
    codes[i] = code;
}
