"""Simulates an RL cluster that writes the native formats of real systems.

A discrete-event simulation in its own process (`python -P -m server.demo`), standard library only. It imports nothing
of Rollscope, so Rollscope must read it as it would read the real system.

Reading order: scenarios (the table), engine, orchestrator, trainer, cluster; for rollouts in sandboxes sandbox_plan,
provider, harness; then what each writes: vllm_page, prime_run, prime_api, truth; then process, which drives it all.
"""
