"""More rows of the proof table: what is said and not sure, beside what only looks like it and is."""

from tests.verdict.support import HEALTHY, STARVED, steps
from tests.verdict.windows import AHEAD, DROPS, FULL, NO_ENGINES, NO_PLACE, NO_QUEUE, Row, of

FILTERED = {'zero_advantage_ratio{basis="completed"}': 0.4, "trainer_wait_ratio": 0.6}
EASY = {'zero_advantage_ratio{basis="completed"}': 0.6,
        'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.6}  # fmt: skip
IN_TOOLS = {"in_flight_ratio": 0.3, 'generator_requests{state="running"}': 4.0, "trainer_wait_ratio": 0.28,
            'in_flight_rollouts{state="generating"}': 4.0, 'in_flight_rollouts{state="booting"}': 0.0,
            'in_flight_rollouts{state="in_tool"}': 14.0, 'in_flight_rollouts{state="scoring"}': 0.0}  # fmt: skip
NEARLY_FULL = FULL | {'generator_requests{state="running"}': 89.0}
UNSCORED = {'in_flight_rollouts{state="generating"}': 60.0, 'in_flight_rollouts{state="booting"}': 0.0,
            'in_flight_rollouts{state="scoring"}': 40.0}  # fmt: skip

SURE: list[Row] = [
    # ---- full engines
    of("engines barely full, two fifths are scored", HEALTHY, STARVED, NEARLY_FULL, UNSCORED,
       said="generator_bound/too_few_engines", sure=False, why="89 of 104: what is scored would find room in them"),
    of("engines barely full, and nobody tells what is outside them", HEALTHY, STARVED, NEARLY_FULL, NO_PLACE,
       said="generator_bound/too_few_engines", sure=False, why="as much may wait for scores or tools"),
    of("engines barely full, all are in them", HEALTHY, STARVED, NEARLY_FULL, said="generator_bound/too_few_engines",
       sure=True, why="nothing is outside them"),
    of("engines full, a fifth is waited, and nobody tells what is under way", HEALTHY, STARVED, FULL, NO_PLACE,
       {"trainer_wait_ratio": 0.2}, said="generator_bound/too_few_engines", sure=False,
       why="1.25 times at most, and 1.18 is the line"),
    of("boots beside engines with room for a third more", HEALTHY, STARVED, {"in_flight_ratio": 1.0,
       'generator_requests{state="running"}': 36.0, "kv_concurrency_limit": 46.8,
       'in_flight_rollouts{state="generating"}': 36.0, 'in_flight_rollouts{state="booting"}': 64.0,
       'in_flight_rollouts{state="in_tool"}': 0.0, 'in_flight_rollouts{state="scoring"}': 0.0},
       said="orchestrator_bound/concurrency_cap", sure=False,
       why="1.3 times as many in them make 1.3 / (1 + 0.3 / 4) = 1.21; engines twice as fast 1 / (1 - 0.18) = 1.22"),
    # ---- a source is missing
    of("engines and filtered groups, nobody tells of the queue", HEALTHY, STARVED, FULL, FILTERED, NO_QUEUE,
       filters_zero_advantage=1.0, said="generator_bound/too_few_engines", sure=False,
       why="2.0 times and 1.67: 1.36 by logarithm is not plain"),
    of("engines and filtered groups, all is told", HEALTHY, STARVED, FULL, FILTERED, filters_zero_advantage=1.0,
       said="generator_bound/too_few_engines", sure=True, why="2.0 times and 1.67: a fifth apart"),
    of("long checkpoints and free places, nobody tells of the queue", HEALTHY, NO_QUEUE, {"trainer_wait_ratio": 0.0,
       'trainer_overhead_seconds{phase="checkpoint"}': 12.0, "in_flight_ratio": 0.75}, said="overhead_bound/checkpoint",
       sure=False, why="slow prompts leave places free, too, and then nothing more would come"),
    of("few under way, 28 % are waited, nobody tells of the queue", HEALTHY, STARVED, IN_TOOLS, NO_QUEUE,
       said="orchestrator_bound/prompts", sure=False, why="1.39 times; of a gate the trainer's turn is up to 1.56"),
    of("few under way, 40 % are waited, nobody tells of the queue", HEALTHY, STARVED, IN_TOOLS, NO_QUEUE,
       {"trainer_wait_ratio": 0.4}, said="orchestrator_bound/prompts", sure=True,
       why="1.67 times; a trainer twice as fast 1.43 at most, were it a gate"),
    of("most groups without a gradient, and nobody tells who waits", HEALTHY, EASY, {"trainer_wait_ratio": None},
       said="curriculum_bound/too_easy", sure=False, why="of a run that waits something else may gain more"),
    of("most groups without a gradient, and nobody waits", HEALTHY, EASY, said="curriculum_bound/too_easy", sure=True,
       why="2.5 times"),
    of("a scorer that is never idle, more are generating, and nobody sees the engines", HEALTHY, STARVED, NO_ENGINES,
       UNSCORED, {"scoring_busy_ratio": 1.0}, said="reward_bound/scoring", sure=False, why="they may be full as well"),
    # ---- luck
    of("a quarter is waited, in three steps of ten", HEALTHY, STARVED, FULL, {"trainer_wait_ratio": 0.27},
       last=steps(0, 0, 0.9, 0, 0, 0.9, 0, 0, 0.9, 0), said="generator_bound/too_few_engines", sure=False,
       why="0.27 and a standard error of 0.14: another ten may wait for a tenth"),
    of("a quarter is waited, in every step", HEALTHY, STARVED, FULL, {"trainer_wait_ratio": 0.27},
       last=steps(*[0.27] * 10), said="generator_bound/too_few_engines", sure=True, why="so will the next ten"),
    of("an eighth is waited, in spells", HEALTHY, {"trainer_wait_ratio": 0.12, "queue_batches": 0.8},
       last=steps(0, 0.3, 0, 0.3, 0, 0.3, 0, 0.3, 0, 0), said="balanced/", sure=False,
       why="0.12 and a standard error of 0.05: beyond the line"),
    of("trainer-bound, 40 % of four groups a step without a gradient", HEALTHY, {"trainer_wait_ratio": 0.0,
       "queue_arrivals_samples_per_second": 18.0, 'zero_advantage_ratio{basis="completed"}': 0.4}, group_size=64.0,
       said="trainer_bound/compute", sure=False, why="of 40 groups 16: as likely as not it is half of them"),
    of("trainer-bound, 40 % of 64 groups a step without a gradient", HEALTHY, {"trainer_wait_ratio": 0.0,
       "queue_arrivals_samples_per_second": 18.0, 'zero_advantage_ratio{basis="completed"}': 0.4}, group_size=4.0,
       said="trainer_bound/compute", sure=True, why="of 640 groups 256: it is not half of them"),
    # ---- held
    of("held for a quarter, nearly all under way, of steps longer than what is seen", HEALTHY, AHEAD,
       {"trainer_step_seconds": 400.0}, said="trainer_bound/compute", sure=False,
       why="the last five minutes are not the whole step: places may be free in the rest"),
    of("held for a quarter, nearly all under way, and a fifth is dropped as stale", HEALTHY, AHEAD,
       {"discarded_rollout_ratio": 0.2}, last=DROPS, said="trainer_bound/compute",
       why="a trainer twice as fast would drop less of it"),
    of("checkpoints of half a step, held meanwhile, and the queue is short after them", HEALTHY, {
       "trainer_wait_ratio": 0.09, "queue_batches": 0.5, 'generation_held_ratio{by="backpressure"}': 0.57,
       'trainer_overhead_seconds{phase="checkpoint"}': 14.4}, said="overhead_bound/checkpoint", sure=False,
       why="2.3 times as much could come, and without them the step is 12 s shorter than its 30"),
]  # fmt: skip
