// Points, rotations and cameras whatever the method, in float32 or float64 (Real). The same maths as
// gaian_hpc/renderers/projection.py.
#pragma once

// Layout of a packed camera: rotation (9), translation (3), fx, fy, cx, cy, width, height, near, far, centre (3).
enum { CAM_T = 9, CAM_FX = 12, CAM_FY, CAM_CX, CAM_CY, CAM_W, CAM_H, CAM_NEAR, CAM_FAR, CAM_CENTER };

#define VISIBLE_ALPHA (1.f / 255.f)

template <class Real> struct Vector3Of { Real x, y, z; };
template <class Real> struct QuaternionOf { Real w, x, y, z; };
template <class Real> struct Matrix3Of { Real m[9]; };
typedef Vector3Of<float> Vec3;
typedef Vector3Of<double> Vec3d;
typedef QuaternionOf<float> Quaternion;
typedef QuaternionOf<double> Quaterniond;
typedef Matrix3Of<float> Matrix3;
typedef Matrix3Of<double> Matrix3d;

__device__ __forceinline__ Vec3 load3(const float* rows, long long n) {
    return {rows[3 * n], rows[3 * n + 1], rows[3 * n + 2]};
}

__device__ __forceinline__ void store3(float* rows, long long n, Vec3 p) {
    rows[3 * n] = p.x; rows[3 * n + 1] = p.y; rows[3 * n + 2] = p.z;
}

__device__ __forceinline__ Quaternion load_quaternion(const float* quats, long long n) {
    const float4 q = reinterpret_cast<const float4*>(quats)[n];
    return {q.x, q.y, q.z, q.w};
}

__device__ __forceinline__ Vec3d wide(Vec3 p) { return {p.x, p.y, p.z}; }
__device__ __forceinline__ Vec3 narrow(Vec3d p) { return {(float)p.x, (float)p.y, (float)p.z}; }
__device__ __forceinline__ Quaterniond wide(Quaternion q) { return {q.w, q.x, q.y, q.z}; }

template <class Real>
__device__ __forceinline__ Vector3Of<Real> to_camera(const Real* cam, Vector3Of<Real> p) {
    return {cam[0] * p.x + cam[1] * p.y + cam[2] * p.z + cam[CAM_T],
            cam[3] * p.x + cam[4] * p.y + cam[5] * p.z + cam[CAM_T + 1],
            cam[6] * p.x + cam[7] * p.y + cam[8] * p.z + cam[CAM_T + 2]};
}

// The gradient of a world point, or vector, from that of the camera's.
template <class Real>
__device__ __forceinline__ Vector3Of<Real> to_world_vjp(const Real* cam, Vector3Of<Real> v) {
    return {cam[0] * v.x + cam[3] * v.y + cam[6] * v.z, cam[1] * v.x + cam[4] * v.y + cam[7] * v.z,
            cam[2] * v.x + cam[5] * v.y + cam[8] * v.z};
}

template <class Real>
__device__ __forceinline__ bool in_depth(const Real* cam, Real z) { return z > cam[CAM_NEAR] && z <= cam[CAM_FAR]; }

template <class Real>
__device__ __forceinline__ QuaternionOf<Real> normalised(QuaternionOf<Real> q, Real& r) {
    r = 1 / sqrt(q.w * q.w + q.x * q.x + q.y * q.y + q.z * q.z);
    return {q.w * r, q.x * r, q.y * r, q.z * r};
}

template <class Real>
__device__ __forceinline__ Matrix3Of<Real> rotation(QuaternionOf<Real> stored) {
    Real r;
    const QuaternionOf<Real> q = normalised(stored, r);
    return {{1 - 2 * (q.y * q.y + q.z * q.z), 2 * (q.x * q.y - q.w * q.z), 2 * (q.x * q.z + q.w * q.y),
             2 * (q.x * q.y + q.w * q.z), 1 - 2 * (q.x * q.x + q.z * q.z), 2 * (q.y * q.z - q.w * q.x),
             2 * (q.x * q.z - q.w * q.y), 2 * (q.y * q.z + q.w * q.x), 1 - 2 * (q.x * q.x + q.y * q.y)}};
}

template <class Real>
__device__ __forceinline__ QuaternionOf<Real> rotation_vjp(QuaternionOf<Real> stored, const Real* v) {
    Real r;
    const QuaternionOf<Real> q = normalised(stored, r);
    const Real w = q.w, x = q.x, y = q.y, z = q.z;
    const Real vw = 2 * (x * (v[7] - v[5]) + y * (v[2] - v[6]) + z * (v[3] - v[1]));
    const Real vx = 2 * (-2 * x * (v[4] + v[8]) + y * (v[1] + v[3]) + z * (v[2] + v[6]) + w * (v[7] - v[5]));
    const Real vy = 2 * (x * (v[1] + v[3]) - 2 * y * (v[0] + v[8]) + z * (v[5] + v[7]) + w * (v[2] - v[6]));
    const Real vz = 2 * (x * (v[2] + v[6]) + y * (v[5] + v[7]) - 2 * z * (v[0] + v[4]) + w * (v[3] - v[1]));
    const Real along = vw * w + vx * x + vy * y + vz * z;  // normalising removes the part along the quaternion
    return {(vw - along * w) * r, (vx - along * x) * r, (vy - along * y) * r, (vz - along * z) * r};
}

// The unit vector from the camera centre to a point, and its inverse length.
template <class Real>
__device__ __forceinline__ Vector3Of<Real> direction(const Real* cam, Vector3Of<Real> p, Real& r) {
    const Vector3Of<Real> d = {p.x - cam[CAM_CENTER], p.y - cam[CAM_CENTER + 1], p.z - cam[CAM_CENTER + 2]};
    r = 1 / sqrt(d.x * d.x + d.y * d.y + d.z * d.z);
    return {d.x * r, d.y * r, d.z * r};
}
