"""The tables at the end."""

import settings
from harness import verdict

WIDTHS = [4, 56, 68]


def windows_table(data):
    rows = data.get("windows", [])
    if not rows:
        return []
    lines = ["delivered share of native after the first window, in percent (windows of 1 s: lowest to highest)"]
    for row in rows:
        cells = "".join(
            f"  {percent}: {one['delivered']:.1f} ({one['lowest']:.1f} to {one['highest']:.1f})"
            for percent, one in row["limited"].items()
        )
        lines.append(f"  {row['kernel_us']:>6} us{cells}")
    return lines + [""]


def many_table(data):
    rows = [row for row in data.get("many", []) if "each" in row]
    if not rows:
        return []
    lines = ["tenants that each fill the device, each and the sum, in percent of one alone"]
    for row in rows:
        shares = row["shares"]
        name = "without Sluice" if shares is None else "/".join(f"{share:g}" for share in shares)
        each = " + ".join(f"{got:.1f}" for got in row["each"])
        lines.append(f"  {row['kernel_us']:>6} us {name:>30}: {each} = {sum(row['each']):.1f}")
    return lines + [""]


def sharing_table(data):
    rows = data.get("sharing", {}).get("pairs", [])
    if not rows:
        return []
    lines = ["pairs, each and the sum, relative to alone"]
    for row in rows:
        for way, found in row["ways"].items():
            each = " + ".join(f"{part:.2f}" for part in found["each"])
            lines.append(f"  {' + '.join(row['names']):>26} {way:>14}: {each} = {found['sum']:.2f}")
    return lines + [""]


def plan(rows):
    """What would be run, and for how long."""
    lines = [f"{'step':14} {'about':>6}  settings"]
    for name, values, about, _ in rows:
        shown = " ".join(f"{key}={settings.shown(value)}" for key, value in vars(values).items())
        lines.append(f"{name:14} {about:4.0f} s  {shown}".rstrip())
    lines.append(f"{'all':14} {sum(row[2] for row in rows):4.0f} s")
    return "\n".join(lines) + "\n"


def criteria_table(criteria):
    lines = [f"{'':{WIDTHS[0]}} {'criterion':{WIDTHS[1]}} {'measured':{WIDTHS[2]}} wanted"]
    for one in criteria:
        cells = [verdict(one["ok"]), one["what"], str(one["measured"])]
        line = " ".join(f"{cell[:width]:{width}}" for cell, width in zip(cells, WIDTHS))
        lines.append(f"{line} {one['wanted'][:48]}".rstrip())
    return lines


def text(result):
    """Everything for a reader, within about 10,000 characters."""
    machine = result["machine"]
    lines = [
        f"Sluice GPU proof, {result['date']}",
        f"{machine['device']}, driver {machine['driver']}, {machine['cpus']} CPUs, {machine['kernel']}, {result['seconds']:.0f} s",
        f"gates: {result['gates']}; programs: {result['programs']}",
        "",
        *windows_table(result["data"]),
        *many_table(result["data"]),
        *sharing_table(result["data"]),
        *criteria_table(result["criteria"]),
        "",
    ]
    passed = sum(one["ok"] is True for one in result["criteria"])
    failed = [one for one in result["criteria"] if one["ok"] is False]
    lines.append(f"{passed} passed, {len(failed)} failed" + (":" if failed else ""))
    took = ", ".join(f"{name} {one['seconds']:.0f} s" for name, one in result["steps"].items())
    lines.insert(2, f"steps: {took}")
    lines += [f"  FAIL {one['step']}: {one['what']}: {str(one['measured'])[:150]}" for one in failed]
    return "\n".join(lines) + "\n"
