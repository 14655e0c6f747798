// The random steps of 3DGS-MCMC (Kheradmand et al. 2024), from the random numbers of gaian_hpc/rng.py: Philox4x32-10
// (Salmon et al. 2011) keyed by purpose, step and point id, made normal after Box and Muller.
// One thread a point; launch: ceil(n / 256) blocks of 256.

#define HALF_PI 1.5707963267948966
#define STEEPNESS 100.0

struct Words { unsigned w[4]; };

__device__ __forceinline__ Words philox(unsigned long long id, unsigned step, unsigned key0, unsigned key1) {
    unsigned c0 = (unsigned)id, c1 = (unsigned)(id >> 32), c2 = step, c3 = 0;
    for (int i = 0; i < 10; ++i) {
        const unsigned long long p0 = (unsigned long long)c0 * 0xD2511F53u, p1 = (unsigned long long)c2 * 0xCD9E8D57u;
        const unsigned k0 = key0 + i * 0x9E3779B9u, k1 = key1 + i * 0xBB67AE85u;
        c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
        c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
        c1 = (unsigned)p1;
        c3 = (unsigned)p0;
    }
    return {{c0, c1, c2, c3}};
}

// Two normal numbers from two words, rounded to float32.
__device__ __forceinline__ void normals(unsigned u, unsigned angle, double& first, double& second) {
    const double radius = sqrt(-2. * log((u + 0.5) * (1. / 4294967296.)));
    const double x = ((angle & 0x3FFFFFFFu) * (1. / 1073741824.) - 0.5) * HALF_PI, c = cos(x), s = sin(x);
    const unsigned quadrant = angle >> 30;
    const double sign = quadrant >= 2 ? -1. : 1.;
    first = (float)(radius * (sign * (quadrant & 1 ? -s : c)));
    second = (float)(radius * (sign * (quadrant & 1 ? c : s)));
}

// Rotate v by the quaternion w, (x, y, z), which need not be normalised.
__device__ __forceinline__ void rotate(double w, double x, double y, double z, double factor, double* v) {
    const double a = v[0], b = v[1], c = v[2];
    const double p = y * c - z * b + w * a, q = z * a - x * c + w * b, r = x * b - y * a + w * c;
    v[0] = a + factor * (y * r - z * q);
    v[1] = b + factor * (z * p - x * r);
    v[2] = c + factor * (x * q - y * p);
}

// Move points of opacity below faint by amount * sigma(-100 (o - threshold)) * covariance * normal.
extern "C" __global__ void __launch_bounds__(256)
shake(long long n, const long long* __restrict__ ids, const float* __restrict__ opacities,
      const float* __restrict__ quats, const float* __restrict__ scales, int n_axes, unsigned key0, unsigned key1,
      unsigned step, double amount, double threshold, float faint, float* __restrict__ means) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n || !(opacities[i] < faint)) return;
    const Words random = philox((unsigned long long)ids[i], step, key0, key1);
    double v[4];
    normals(random.w[0], random.w[1], v[0], v[1]);
    normals(random.w[2], random.w[3], v[2], v[3]);
    const double rate = amount / (1. + exp(STEEPNESS * (opacities[i] - threshold)));
    const double w = quats[4 * i], x = quats[4 * i + 1], y = quats[4 * i + 2], z = quats[4 * i + 3];
    const double square = w * w + x * x + y * y + z * z, factor = square > 0. ? 2. / square : 0.;
#pragma unroll
    for (int k = 0; k < 3; ++k) v[k] *= rate;
    rotate(-w, x, y, z, factor, v);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const double s = k < n_axes ? scales[n_axes * i + k] : 0.;
        v[k] *= s * s;
    }
    rotate(w, x, y, z, factor, v);
#pragma unroll
    for (int k = 0; k < 3; ++k) means[3 * i + k] = (float)(means[3 * i + k] + v[k]);
}
