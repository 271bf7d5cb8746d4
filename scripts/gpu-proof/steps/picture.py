"""A picture of latency against throughput, as SVG by hand."""

import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 460, 80, 150, 50, 60
COLOURS = {"slicing": "#d95f02", "mps": "#7570b3"}
SLUICE = "#1b7f5c"


def scatter(title, points, alone_ms):
    """`points`: name, part of its speed alone that the training keeps, p99 in milliseconds. The best is at the bottom right."""
    heights = [p99 for _, _, p99 in points] + [alone_ms]
    low, high = math.log10(min(heights) * 0.7), math.log10(max(heights) * 1.4)

    def x(part):
        return LEFT + min(max(part, 0.0), 1.05) / 1.05 * (WIDTH - LEFT - RIGHT)

    def y(ms):
        return TOP + (high - math.log10(ms)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2 - 30, 26, title, "middle", 'font-size="15"'),
    ]
    for part in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        lines += [line(x(part), TOP, x(part), HEIGHT - BOTTOM), text(x(part), HEIGHT - BOTTOM + 20, f"{part:g}", "middle")]
    for ms in ticks(low, high):
        lines += [line(LEFT, y(ms), WIDTH - RIGHT, y(ms)), text(LEFT - 8, y(ms) + 4, f"{ms:g}", "end")]
    lines += [
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "training, part of its speed alone", "middle"),
        text(20, (TOP + HEIGHT - BOTTOM) / 2, "p99 in ms", "middle", f'transform="rotate(-90 20 {(TOP + HEIGHT - BOTTOM) / 2:.0f})"'),
        line(LEFT, y(alone_ms), WIDTH - RIGHT, y(alone_ms), 'stroke="#444" stroke-dasharray="6 4"'),
        text(WIDTH - RIGHT + 6, y(alone_ms) + 4, "alone"),
    ]
    taken = []
    for name, part, p99 in sorted(points, key=lambda one: -one[2]):
        across, down = x(part), y(p99)
        colour = COLOURS.get(name, SLUICE)
        lines.append(mark(name, across, down, colour))
        label = down + 4
        while any(abs(label - one) < 14 for one in taken):
            label += 4
        taken.append(label)
        lines.append(text(across + 10, label, name, "start", f'fill="{colour}"'))
    return "\n".join([*lines, "</svg>"]) + "\n"


def ticks(low, high):
    """Round numbers between two powers of ten."""
    return [digit * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for digit in (1, 2, 5) if low <= math.log10(digit * 10.0**power) <= high]


def line(x0, y0, x1, y1, how='stroke="#ddd"'):
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" {how}/>'


def text(x, y, said, anchor="start", how=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {how}>{html.escape(said)}</text>'


def mark(name, x, y, colour):
    """A square for slicing, a triangle for the vendor's service, circles for the policies."""
    if name == "slicing":
        return f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" fill="{colour}"/>'
    if name == "mps":
        return f'<path d="M {x:.1f} {y - 7:.1f} l 7 13 l -14 0 z" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>'
