// The hull of a convex's projected points and its edges (Held et al. 2024, section 3.2), one convex at a time.
// The same maths as gaian_hpc/renderers/convex3d/cpu.py, where each step is explained; in float64, so that hull and
// culling agree with that.
#pragma once
#include "common/camera.cuh"

#define N_EDGES 6
#define Z_MIN 1e-3
#define RADIUS_MAX 1e4                     // pixels
#define COS_SHARP (-0.98999249660044542)   // of 3 rad
#define COS_FLAT 0.99500416527802577       // of 0.1 rad
#define ABSENT (-1e9f)                     // offset of an edge that a hull lacks

struct Pixel { double x, y; };

// The projected points about the projected mean (u, v) at depth z, the n of them on the hull in positive orientation,
// and the edges (normal, offset) from each of these to the next; n is 0 where the convex is not drawn.
struct Hull {
    double u, v, z;
    Pixel points[N_EDGES];
    int at[2 * N_EDGES + 1], n;
};

struct Edge { double x, y, offset, length; };

__device__ __forceinline__ Vec3d mean_of(const float* points, int count) {
    Vec3d sum = {0., 0., 0.};
    for (int k = 0; k < count; ++k) {
        const Vec3d p = wide(load3(points, k));
        sum.x += p.x; sum.y += p.y; sum.z += p.z;
    }
    return {sum.x / count, sum.y / count, sum.z / count};
}

__device__ __forceinline__ Pixel to_pixel(const double* cam, Vec3d p) {
    return {cam[CAM_FX] * p.x / p.z + cam[CAM_CX], cam[CAM_FY] * p.y / p.z + cam[CAM_CY]};
}

// Twice the signed area of a triangle.
__device__ __forceinline__ double turn(Pixel a, Pixel b, Pixel c) {
    return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
}

// Andrew's monotone chain over points sorted by (y, x).
__device__ __forceinline__ void find_hull(Hull& h, int count) {
    int order[N_EDGES];
    for (int i = 0; i < count; ++i) {
        int j = i;
        for (; j > 0; --j) {
            const Pixel p = h.points[i], q = h.points[order[j - 1]];
            if (!(p.y < q.y || (p.y == q.y && p.x < q.x))) break;
            order[j] = order[j - 1];
        }
        order[j] = i;
    }
    int m = 0;
    for (int i = 0; i < count; ++i) {
        while (m >= 2 && turn(h.points[h.at[m - 2]], h.points[h.at[m - 1]], h.points[order[i]]) <= 0.) --m;
        h.at[m++] = order[i];
    }
    const int base = m;
    for (int i = count - 2; i >= 0; --i) {
        while (m > base && turn(h.points[h.at[m - 2]], h.points[h.at[m - 1]], h.points[order[i]]) <= 0.) --m;
        h.at[m++] = order[i];
    }
    h.n = m - 1;
}

// Whether some corner is between 0.1 and 3 rad; without one a hull is a sliver.
__device__ __forceinline__ bool has_corner(const Hull& h) {
    for (int j = 1; j < h.n; ++j) {
        const Pixel a = h.points[h.at[j - 1]], b = h.points[h.at[j]], c = h.points[h.at[(j + 1) % h.n]];
        const double ax = b.x - a.x, ay = b.y - a.y, bx = c.x - b.x, by = c.y - b.y;
        const double cosine = (ax * bx + ay * by) / sqrt((ax * ax + ay * ay) * (bx * bx + by * by));
        if (COS_SHARP < cosine && cosine < COS_FLAT) return true;
    }
    return false;
}

__device__ __forceinline__ Hull project_hull(const double* cam, const float* points, int count) {
    Hull h;
    h.u = h.v = 0.;
    h.n = 0;
    const Vec3d middle = to_camera(cam, mean_of(points, count));
    h.z = middle.z;
    if (!in_depth(cam, middle.z)) return h;
    const Pixel center = to_pixel(cam, middle);
    h.u = center.x;
    h.v = center.y;
    double far = 0.;
    for (int k = 0; k < count; ++k) {
        const Vec3d p = to_camera(cam, wide(load3(points, k)));
        if (!(p.z > Z_MIN)) return h;
        const Pixel q = to_pixel(cam, p);
        h.points[k] = {q.x - h.u, q.y - h.v};
        far = fmax(far, h.points[k].x * h.points[k].x + h.points[k].y * h.points[k].y);
    }
    if (!(far <= RADIUS_MAX * RADIUS_MAX)) return h;
    find_hull(h, count);
    if (h.n < 3 || !has_corner(h)) h.n = 0;
    return h;
}

// Outward normal and offset of the j-th edge, and what they are divided by.
__device__ __forceinline__ Edge edge_of(const Hull& h, int j, int by_length) {
    const Pixel a = h.points[h.at[j]], b = h.points[h.at[(j + 1) % h.n]];
    double x = b.y - a.y, y = a.x - b.x;
    const double length = by_length ? sqrt(x * x + y * y) : 1.;
    x /= length;
    y /= length;
    return {x, y, -(x * a.x + y * a.y), length};
}

// The phi at which alpha falls to 1/255, with room for rounding; never tells of opacities that do not reach that.
__device__ __forceinline__ double limit_of(double opacity, double sharpness, bool& never) {
    const double odds = 255. * opacity - 1.;
    never = !(odds > 0.);
    if (never) return 0.;
    const double limit = log(odds) / sharpness;
    return limit + 1e-3 * fabs(limit) + 1e-3 / sharpness;
}

struct Box { double x0, y0, x1, y1; };  // about the centre; x0 > x1 for none

// The bounds of where k times every edge's distance is at most limit: those of the corners of that polygon.
__device__ __forceinline__ Box extent_of(const Hull& h, double k, int by_length, double limit) {
    Edge edges[N_EDGES];
    for (int j = 0; j < h.n; ++j) edges[j] = edge_of(h, j, by_length);
    Box box = {1e300, 1e300, -1e300, -1e300};
    for (int i = 0; i < h.n; ++i)
        for (int j = i + 1; j < h.n; ++j) {
            const Edge a = edges[i], b = edges[j];
            const double det = a.x * b.y - a.y * b.x;
            if (fabs(det) < 1e-12 * (fabs(a.x) + fabs(a.y)) * (fabs(b.x) + fabs(b.y))) continue;
            const double ra = limit / k - a.offset, rb = limit / k - b.offset;
            const double x = (ra * b.y - a.y * rb) / det, y = (a.x * rb - ra * b.x) / det;
            bool inside = true;
            for (int e = 0; e < h.n; ++e) {
                const Edge c = edges[e];
                const double size = fabs(c.x * x) + fabs(c.y * y) + fabs(c.offset);
                inside &= k * (c.x * x + c.y * y + c.offset) <= limit + 1e-9 * (k * size + fabs(limit));
            }
            if (inside) box = {fmin(box.x0, x), fmin(box.y0, y), fmax(box.x1, x), fmax(box.y1, y)};
        }
    return box;
}
