"""Simulates an RL cluster that writes the native formats of real systems.

A discrete-event simulation in its own process (`python -P -m demo`), standard library only. It imports nothing of
Rollscope, so Rollscope must read it as it would read the real system.

Reading order: scenarios (the table), engine, orchestrator, cluster; for rollouts in sandboxes provider; then what each
writes: pages, prime, slime, verl, servers, truth; then process, which drives it all.
"""
