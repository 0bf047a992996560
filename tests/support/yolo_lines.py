"""Random lines of YOLO: the numbers after the class, and the sides of the box."""

import numpy as np


def random_box(rng):
    width, height = rng.uniform(0.05, 0.9, 2)
    return [
        rng.uniform(width / 2, 1 - width / 2),
        rng.uniform(height / 2, 1 - height / 2),
        width,
        height,
    ]


def detection(rng, extra):
    """A box with other numbers after it, and its sides."""
    x, y, width, height = box = random_box(rng)
    more = {
        "": [],
        "confidence": [rng.uniform()],
        "id": [int(rng.integers(-1, 40))],
        "confidence and id": [rng.uniform(), int(rng.integers(0, 40))],
    }
    return box + more[extra], (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def pose(rng, count, dimensions, extra=""):
    """A box with key points in it, some of which are unknown."""
    numbers, sides = detection(rng, "")
    points = np.stack(
        [
            rng.uniform(*sides[::2], count),
            rng.uniform(*sides[1::2], count),
            rng.integers(1, 3, count),
        ],
        axis=-1,
    )
    points[rng.uniform(size=count) < 0.1] = 0
    points = points[:, :dimensions]
    after = detection(rng, extra)[0][4:]
    return [*numbers, *points.ravel().tolist(), *after], sides


def outline(rng, count):
    """The points of an outline in its order, and the sides of the box around it."""
    x, y, width, height = random_box(rng)
    angles = np.sort(rng.uniform(0, 2 * np.pi, count))
    radius = rng.uniform(0.6, 1, count) / 2
    points = np.stack(
        [x + radius * width * np.cos(angles), y + radius * height * np.sin(angles)], axis=-1
    )
    return points.ravel().tolist(), (*points.min(0), *points.max(0))


def oriented(rng):
    """The corners of a rotated rectangle."""
    angle, (width, height) = rng.uniform(0, np.pi), rng.uniform(0.05, 0.4, 2)
    right = np.array([np.cos(angle), np.sin(angle)]) * width / 2
    down = np.array([-np.sin(angle), np.cos(angle)]) * height / 2
    around = np.stack([-right - down, right - down, right + down, down - right])
    corners = rng.uniform(0.3, 0.7, 2) + around
    return corners.ravel().tolist(), (*corners.min(0), *corners.max(0))
