"""The power controller: converters in series, and their controller (LOCO appendix B).

A channel of two arrays of owned variables, each in a cache line of its own:
    "NAME/duty0" ...      duty cycle of a converter, from 0 to 1; owned by the controller
    "NAME/voltage0" ...   its output, in volts; owned by that converter
A value is a double in one word. Both sides run loops of a fixed period, and take the values that
the other one has pushed last.

A converter is a buck converter, averaged over its switching: L di/dt = d Vin - v and
C dv/dt = i - v / R, in steps of `step_us` (the current first, then the voltage with it, which
keeps the energy of the filter). The output of all is the sum of their outputs. The controller is a
discrete PI in its incremental form, on the error of the sum, divided by the largest possible sum.

The paper does not print its parameters. With these, the delay of the loop (half of the controller's
period, and the step of the converters) leaves the filter less damping the longer it is: at 50 us
hardly any, at 60 us none.

A kill leaves behind: the last values; the others go on with them.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any, Final

from limpet.shm.errors import ParameterError
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.owned_var import OwnedVar

DOUBLE: Final = struct.Struct("<d")


@dataclasses.dataclass(frozen=True)
class Circuit:
    """The converters, all alike, and the gains of their controller. In SI units, but `step_us`."""

    converters: int = 20
    step_us: float = 10.0
    input_v: float = 48.0
    reference_v: float = 240.0
    inductance_h: float = 50e-6
    capacitance_f: float = 100e-6
    load_ohm: float = 2.0
    proportional: float = 1.1
    integral_per_s: float = 1500.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ParameterError(f"{field.name} must be positive")
        if not self.reference_v < self.converters * self.input_v:
            raise ParameterError(
                f"{self.converters} converters of {self.input_v} V do not give {self.reference_v} V"
            )


class PowerController(Channel):
    """The variables with which the controller and the converters exchange their values."""

    def __init__(
        self, manager: Any, name: str, parent: Any = None, *, converters: int = 20
    ) -> None:
        super().__init__(manager, name, parent, size=2 * LINE * converters, kind="power_controller")
        self.duty = [self._variable("duty", number) for number in range(converters)]
        at = LINE * converters
        self.voltage = [self._variable("voltage", number, at) for number in range(converters)]

    def _variable(self, name: str, number: int, offset: int = 0) -> OwnedVar:
        at = self.address + offset + LINE * number
        return OwnedVar(self.manager, f"{name}{number}", self, at=at)

    def take(self, variables: list[OwnedVar]) -> list[float]:
        """The values that their owners have pushed last; 1 round trip."""
        endpoint = self.endpoint
        with self.operation():
            tickets = [endpoint.post_load(variable.at) for variable in variables]
            endpoint.wait()
            return [_number(endpoint.result(ticket)) for ticket in tickets]

    def push(self, variables: list[OwnedVar], numbers: list[float]) -> None:
        """Publish values. For their owner only."""
        with self.operation():
            for variable, number in zip(variables, numbers, strict=True):
                variable.store(int.from_bytes(DOUBLE.pack(number), "little"))
                variable.place()


class Converter:
    """One converter: `step` is an iteration of its loop."""

    def __init__(self, channel: PowerController, number: int, circuit: Circuit) -> None:
        self.channel = channel
        self.duty = [channel.duty[number]]
        self.output = [channel.voltage[number]]
        self.circuit = circuit
        self.current = 0.0
        self.voltage = 0.0

    def step(self) -> None:
        """Take the duty cycle, go on by `step_us`, and push the voltage."""
        circuit = self.circuit
        (duty,) = self.channel.take(self.duty)
        seconds = circuit.step_us * 1e-6
        self.current += seconds / circuit.inductance_h * (duty * circuit.input_v - self.voltage)
        drawn = self.voltage / circuit.load_ohm
        self.voltage += seconds / circuit.capacitance_f * (self.current - drawn)
        self.channel.push(self.output, [self.voltage])


class Controller:
    """The controller, with a loop of this period; `step` is an iteration of it."""

    def __init__(self, channel: PowerController, circuit: Circuit, period_us: float) -> None:
        self.channel = channel
        self.circuit = circuit
        self.integral = circuit.integral_per_s * period_us * 1e-6
        self.before = 0.0

    def step(self) -> float:
        """Take the voltages, push new duty cycles; the sum of the voltages."""
        circuit, channel = self.circuit, self.channel
        total = sum(channel.take(channel.voltage))
        error = (circuit.reference_v - total) / (circuit.converters * circuit.input_v)
        change = circuit.proportional * (error - self.before) + self.integral * error
        self.before = error
        duties = [_number(variable.value) + change for variable in channel.duty]
        channel.push(channel.duty, [min(1.0, max(0.0, duty)) for duty in duties])
        return total


def simulate(
    channel: PowerController, circuit: Circuit, period_us: float, duration_us: float
) -> Iterator[tuple[float, float]]:
    """All of it on one virtual clock: time in us and output, at each step of the converters.

    At one time the converters come before the controller.
    """
    converters = [Converter(channel, n, circuit) for n in range(circuit.converters)]
    controller = Controller(channel, circuit, period_us)
    due = 0.0
    for number in range(int(duration_us / circuit.step_us)):
        now = number * circuit.step_us
        for converter in converters:
            converter.step()
        while due <= now:
            controller.step()
            due += period_us
        yield now, sum(converter.voltage for converter in converters)


def _number(word: Any) -> float:
    return float(DOUBLE.unpack(int(word).to_bytes(8, "little"))[0])
