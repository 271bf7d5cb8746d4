"""What a step can be told: how long, how often, which kernels. Defaults are small, `FULL` is the whole table, and
`JUDGE` names the programs that nobody looks at while tuning.

A step's module has `SETTINGS`, and may have the others; the caller changes single ones by `--set STEP.NAME=VALUE`.
"""

import sys
import types


class WrongSetting(Exception):
    """What the caller asked for that no step knows."""


def module(step):
    """The module of a step's function."""
    return sys.modules[step.__module__]


def resolve(name, step, full, judge, given):
    """A step's settings, as a namespace. `given` maps `STEP.NAME` to text; what is used is taken out of it."""
    known = getattr(module(step), "SETTINGS", {})
    values = dict(known)
    for chosen, table in [(full, "FULL"), (judge, "JUDGE")]:
        values.update(getattr(module(step), table, {}) if chosen else {})
    for key in [key for key in given if key.startswith(f"{name}.")]:
        setting = key.removeprefix(f"{name}.")
        if setting not in known:
            raise WrongSetting(f"--set {key}: expected one of {', '.join(f'{name}.{one}' for one in known) or 'none: the step has no settings'}")
        text = given.pop(key)
        try:
            values[setting] = parse(text, known[setting])
        except ValueError:
            raise WrongSetting(f"--set {key}={text}: expected something like {shown(known[setting])}") from None
    return types.SimpleNamespace(**values)


def parse(text, default):
    """Text of the default's type; lists with commas."""
    if isinstance(default, list):
        return [parse(one, default[0]) for one in text.split(",") if one]
    return type(default)(text)


def shown(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def about(seconds, values):
    """Seconds that a step takes on an H200: a number, or what the module makes of its settings."""
    return seconds(values) if callable(seconds) else seconds
