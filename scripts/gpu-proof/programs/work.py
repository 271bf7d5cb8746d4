"""What the programs that run in a loop are made of."""

import dataclasses
import typing


@dataclasses.dataclass
class Work:
    """One step, and whether the program waits for each one as a service does."""

    step: typing.Callable
    waits: bool = False
    made_with: str = "torch"
    unit: str = "steps"
    # What tells when steps ended; without it PyTorch's events do.
    clock: typing.Callable = None
