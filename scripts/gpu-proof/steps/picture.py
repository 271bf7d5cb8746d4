"""A picture of latency against throughput, as SVG by hand. `proof.py --draw RESULT` makes it of a result that is there."""

import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 420, 70, 120, 50, 60
COLOURS = {"slicing": "#d95f02", "mps": "#7570b3"}
SLUICE = "#1b7f5c"
# What a letter and a line of text take, about; and a part of the speed that is as good as all of it.
LETTER, LINE, NEARLY_ALL = 7, 14, 0.97
NAMES = {"fixed": "50/50 fixed", "balance": "50/50 balance", "high-low": "high, low", "mps": "MPS", "mps-priority": "MPS, priorities", "mps-high-low": "high, low, MPS"}


def latency(found):
    """What the step `latency` has found: a part of the picture for each front; nothing where nothing was found."""
    parts = []
    for front in dict.fromkeys(row["front"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["front"] == front]
        alone = next((row for row in rows if row["way"] == "alone"), None)
        points = [(row["way"], row["training_of_alone"], row["p99"], row.get("rate_of_alone")) for row in rows if row.get("training_of_alone") is not None]
        if alone and points:
            parts.append((f"{front} beside {found['back']}, gates: {found['gates']}", points, alone["p99"]))
    return side_by_side(parts) if parts else None


def side_by_side(parts):
    """`parts`: for each its title, its points and the p99 alone."""
    width = WIDTH * len(parts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, one in enumerate(parts):
        lines += [f'<g transform="translate({WIDTH * number} 0)">', *scatter(*one), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def scatter(title, points, alone_ms):
    """`points`: name, part of its speed alone that the training keeps, p99 in milliseconds, part that the front keeps.
    The best is at the bottom right."""
    heights = [point[2] for point in points] + [alone_ms]
    low, high = math.log10(min(heights) * 0.7), math.log10(max(heights) * 1.4)

    def x(part):
        return LEFT + min(max(part, 0.0), 1.05) / 1.05 * (WIDTH - LEFT - RIGHT)

    def y(ms):
        return TOP + (high - math.log10(ms)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    lines = [text((LEFT + WIDTH - RIGHT) / 2, 26, title, "middle", 'font-size="15"')]
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
    lines.append(text(WIDTH - RIGHT - 6, HEIGHT - BOTTOM - 8, "best", "end", 'fill="#888"'))
    taken = []
    for name, part, p99, own in sorted(points, key=lambda one: -one[2]):
        across, down = x(part), y(p99)
        colour = SLUICE if name.endswith("high-low") else COLOURS.get(name.partition("-")[0], SLUICE)
        lines.append(mark(name, across, down, colour))
        said = NAMES.get(name, name) + (f" (own speed {own:.2f})" if own is not None and own < NEARLY_ALL else "")
        # Left of its mark where there is no room on the right.
        side, anchor = (-10, "end") if across > (LEFT + WIDTH) / 2 and len(said) > 15 or across > WIDTH - RIGHT - 40 else (10, "start")
        wide = LETTER * len(said)
        begin, label = across + side - (wide if anchor == "end" else 0), down + 4
        while any(abs(label - height) < LINE and begin < right and left < begin + wide for left, right, height in taken):
            label += 4
        taken.append((begin, begin + wide, label))
        lines.append(text(across + side, label, said, anchor, f'fill="{colour}"'))
    return lines


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
    if name in ("mps", "mps-priority"):
        return f'<path d="M {x:.1f} {y - 7:.1f} l 7 13 l -14 0 z" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>'
