"""A flat survey as an access profile: cells on a square, views over it that read the cells below them."""

import numpy as np

from gaian_hpc.placement.profile import Profile


def survey(side=24, n_views=120, patches=4, reach=3.0, seed=0, points=100):
    """Return the profile of ``side`` × ``side`` cells in Morton order, read by views of ``patches`` × ``patches``."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    code = [sum(((a >> b & 1) << 2 * b) | ((c >> b & 1) << 2 * b + 1) for b in range(10)) for a, c in
            zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)]
    order = np.argsort(code)
    centers = np.stack([x.ravel()[order], y.ravel()[order], np.zeros(side * side)], axis=1).astype(np.float32)
    indptr, cells, counts = [0], [], []
    for _ in range(n_views):
        at = rng.uniform(reach, side - reach, 2)
        column, row = (np.floor((centers[:, i] - at[i] + reach) / (2 * reach) * patches) for i in (0, 1))
        for p in range(patches * patches):
            seen = np.flatnonzero((row == p // patches) & (column == p % patches))
            cells.append(seen)
            counts.append(np.full(len(seen), points // 2))
            indptr.append(indptr[-1] + len(seen))
    view = np.repeat(np.arange(n_views, dtype=np.int32), patches * patches)
    return Profile(np.full(side * side, points), centers, np.array(indptr), np.concatenate(cells).astype(np.int32),
                   np.concatenate(counts).astype(np.int64), view, np.zeros(len(view), np.int64))
