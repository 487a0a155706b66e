"""An imaginary RL cluster that speaks the native formats of real systems.

A discrete-event simulation in a process of its own (`python -P -m server.demo`), standard library only. It
imports nothing of Rollscope: what Rollscope reads of it, it must read as it would read the real thing.

Reading order: scenarios (the table), engine, orchestrator, trainer, cluster; for rollouts in sandboxes sandbox_plan,
provider, harness; then what each writes: vllm_page, prime_run, prime_api, truth; then process, which drives it all.
"""
