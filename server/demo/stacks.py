"""The process of a scenario, by its stack."""

from collections.abc import Sequence
from pathlib import Path

from server.demo.agent_process import AgentDemo
from server.demo.faults import Fault
from server.demo.process import Demo
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.slime_process import SlimeDemo
from server.demo.verl_process import VerlDemo


def begin(
    scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0, faults: Sequence[Fault] = ()
) -> Served:
    """Simulated up to `start` and served. Epoch times."""
    row = SCENARIOS[scenario]
    kind = SlimeDemo if row.slime else VerlDemo if row.verl else AgentDemo if row.agents else Demo
    return kind(scenario, seed, folder, start, records_from, faults)
