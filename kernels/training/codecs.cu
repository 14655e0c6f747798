// Rows of an array in the form in which they cross ranks, and back: the bytes of gaian_hpc/distributed/codecs.py.
// Value i of a message is values[rows[i / width] * width + i % width].
// Launch: ceil(n / 256) blocks of 256.
#define BLOCK 64       // values with one scale
#define FP16_TOP 14    // the largest value is scaled to [2^14, 2^15)

__device__ __forceinline__ float value_of(const float* values, const long long* rows, int width, long long i) {
    return values[rows[i / width] * width + i % width];
}

__device__ __forceinline__ unsigned short half_bits(float x) {  // to nearest, ties to even
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
        const float steps = rintf(__uint_as_float(magnitude) * 16777216.f);
        return (unsigned short)(sign | (unsigned)steps);
    }
    const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (unsigned short)(sign | (rounded - 0x38000000u) >> 13);
}

__device__ __forceinline__ float half_value(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    const float magnitude = exponent == 0 ? mantissa * 5.9604645e-8f
                                          : __uint_as_float((exponent + 112u) << 23 | mantissa << 13);
    return __uint_as_float(__float_as_uint(magnitude) | sign);
}

extern "C" __global__ void __launch_bounds__(256)
pack_fp32(long long n, int width, const long long* __restrict__ rows, const float* __restrict__ values,
          float* __restrict__ out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = value_of(values, rows, width, i);
}

// The bits of the largest magnitude of a message; top must be zero before. Infinity and NaN are above all numbers.
extern "C" __global__ void __launch_bounds__(256)
largest(long long n, int width, const long long* __restrict__ rows, const float* __restrict__ values,
        unsigned* __restrict__ top) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) atomicMax(top, __float_as_uint(value_of(values, rows, width, i)) & 0x7fffffffu);
}

extern "C" __global__ void __launch_bounds__(256)
pack_bf16(long long n, int width, const long long* __restrict__ rows, const float* __restrict__ values,
          unsigned short* __restrict__ out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const unsigned b = __float_as_uint(value_of(values, rows, width, i));
    out[i] = (unsigned short)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

extern "C" __global__ void __launch_bounds__(256)
unpack_bf16(long long n, const unsigned short* __restrict__ data, float* __restrict__ out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = __uint_as_float((unsigned)data[i] << 16);
}

// Eight bytes of header hold the exponent of the scale.
extern "C" __global__ void __launch_bounds__(256)
pack_fp16(long long n, int width, const long long* __restrict__ rows, const float* __restrict__ values,
          const unsigned* __restrict__ top, unsigned char* __restrict__ out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const int exponent = *top ? FP16_TOP - ((int)(*top >> 23) - 126) : 0;
    reinterpret_cast<unsigned short*>(out + 8)[i] = half_bits(ldexpf(value_of(values, rows, width, i), exponent));
    if (i == 0) *reinterpret_cast<long long*>(out) = exponent;
}

extern "C" __global__ void __launch_bounds__(256)
unpack_fp16(long long n, const unsigned char* __restrict__ data, float* __restrict__ out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const int exponent = (int)*reinterpret_cast<const long long*>(data);
    out[i] = ldexpf(half_value(reinterpret_cast<const unsigned short*>(data + 8)[i]), -exponent);
}

// A float32 scale for each 64 values, then a byte for each value.
extern "C" __global__ void __launch_bounds__(256)
pack_int8(long long n, int width, const long long* __restrict__ rows, const float* __restrict__ values,
          unsigned char* __restrict__ out) {
    __shared__ float peaks[256];
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    const int t = threadIdx.x;
    const float x = i < n ? value_of(values, rows, width, i) : 0.f;
    peaks[t] = fabsf(x);
    for (int d = BLOCK / 2; d > 0; d /= 2) {
        __syncthreads();
        if (t % BLOCK < d) peaks[t] = fmaxf(peaks[t], peaks[t + d]);
    }
    __syncthreads();
    if (i >= n) return;
    const float scale = peaks[t / BLOCK * BLOCK] / 127.f;
    if (i % BLOCK == 0) reinterpret_cast<float*>(out)[i / BLOCK] = scale;
    out[4 * ((n + BLOCK - 1) / BLOCK) + i] = (unsigned char)(signed char)rintf(x / (scale > 0.f ? scale : 1.f));
}

extern "C" __global__ void __launch_bounds__(256)
unpack_int8(long long n, const unsigned char* __restrict__ data, float* __restrict__ out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    const float scale = reinterpret_cast<const float*>(data)[i / BLOCK];
    out[i] = scale * (float)(signed char)data[4 * ((n + BLOCK - 1) / BLOCK) + i];
}
