"""All thresholds of the verdict: one constant per line, with its unit and its reason."""

from collections.abc import Mapping

# ---- the trainer's wait, shares of its step

WAITS = 0.15
"""Share of the step. Batch noise alone costs a balanced run some per cent (watch band of `trainer_wait_ratio`)."""
STAYS = 0.04
"""Share of the step. A standing verdict is kept this far beyond its line: noise on the line changes nothing."""
COMES = 0.02
"""Share of the step. Another verdict is found this far beyond the line."""
LITTLE_WAIT = 0.05
"""Share of the step. Less is the moment in which a batch is handed over: the trainer is the limit."""
NO_WAIT = 0.02
"""Share of the step. A predicted wait below it leaves no gap to explain."""
SOME_WAIT = 0.10
"""Share of the step. A trainer that waits this much next to a stocked queue waited at another time."""
MUCH_WAIT = 0.25
"""Share of the step. Such a wait is no accident of some batches."""
FEW_STEPS = 3
"""Steps. A wait seen in no more steps may be chance."""
CONTRADICTED = 0.10
"""Share of the step beyond `WAITS` at which a standing verdict contradicts the trainer's own wait, and ends at once."""
SAME_WAIT = 0.03
"""Share of the step. Two waits this near need no text about their steps."""
SURELY_BEYOND = 2.0
"""Standard errors of the mean wait beyond `WAITS`. Nearer, chance may have put it there."""
MOSTLY_WAITS = 0.5
"""Share of the step. A trainer that mostly waits is not what the run waits for, however few steps show it."""
DISAGREE = 0.15
"""Share of the step. The claimed wait and the wait that follows from arrivals agree below it."""

# ---- gains and confidence

LEAST_FACTOR = 1.05
"""Factor. Below it a limiter cannot be distinguished from noise."""
SURPLUS = 1.25
"""Factor. So much more must be on offer for the trainer to be the limiter; held a sixth of the time is matched."""
WORTH = 1.18
"""Factor. 1 / (1 - WAITS): worth changing something for."""
TWICE = 2.0
"""Factor. What can be added to engines or to a trainer is as much again, not infinitely much."""
LEAST_SHARE = 0.05
"""Share of the whole. What a share leaves over is taken as at least this, so that no factor exceeds 20."""
LEAST_USED = 0.02
"""Share. What the trainer gets and what the engines use are taken as at least this, so that no factor exceeds 50."""
SAME_GAIN = 0.005
"""Factor. A gain this near to the gap fills it: both are shown with two decimals."""
CLEAR = 1.2
"""Ratio of log gains. Two limiters nearer than a fifth are not distinguished."""
PLAIN = 1.5
"""Ratio of log gains. With a source missing a limiter must gain half again as much as its rival."""
NEAR_RIVAL = 0.85
"""Factor of confidence where the gain is clearly, but not plainly above that of a rival."""
CERTAIN = 0.95
"""Confidence of a verdict with all evidence and no rival. Nothing measured from outside is certain."""
UNCONTRADICTED = 0.95
"""Factor of confidence where nothing contradicts the verdict, and nothing measures it: a balance, a gate."""
INFERRED = 0.9
"""Factor of confidence where the verdict follows from an effect of the limiter, not from the limiter itself."""
ARRIVALS_UNKNOWN = 0.7
"""Factor of confidence of a trainer that limits by its queue alone, because arrivals are not reported."""
UNPROVEN = 0.6
"""Factor of confidence where one missing source, or chance, could turn the verdict round."""
HALF = 0.5
"""Confidence of a verdict that is as likely as all others together."""
NOTHING_MADE = 0.75
"""Confidence that a late run stands still where the engines have had no request for three usual steps: tool calls that
take as long leave some request in between."""
CONFIDENT = 0.6
"""Confidence from which a verdict is shown without "perhaps"."""
SAME_COUNT = 0.05
"""Relative difference below which two means of five minutes are one number, and the signal's is named."""
NO_EVIDENCE = 0.4
"""Factor of confidence with no evidence beyond that of the rule; with all of it the factor is 1."""
COMPLETE = 0.99
"""Share of the evidence. The weights of all of it sum to 1 but for rounding."""
UNSETTLED = 0.45
"""Highest confidence of a verdict that another one is about to replace: less than even."""
CONTRADICTION = 0.8
"""Factor of confidence where two sources contradict each other."""

# ---- the verdict over time, seconds

HOLD_SECONDS = 30.0
"""Seconds. A change must hold this long: six ticks are longer than one late page."""
UNSURE_SECONDS = 60.0
"""Seconds. A change to a verdict that is not confident must hold twice as long."""
CHANGED_SECONDS = 15.0
"""Seconds. Whole steps have shown the change already: three ticks outlast a page that mixes both times."""
FIRST_SECONDS = 10.0
"""Seconds. The first verdict of a run replaces `unknown`: nothing is lost by showing it early."""
MISSING_SECONDS = 120.0
"""Seconds. Data missing for two minutes are no gap between two scrapes."""

# ---- groups without a gradient

ZERO_ADVANTAGE = 0.50
"""Share of completed groups. Near the published 55 %; below it a curriculum is merely uneven."""
FEW_FLAT = 0.20
"""Share of completed groups. Four of five groups carry a gradient: the choice of tasks holds nothing back."""
NEAR_LINE = 0.9
"""Share of `ZERO_ADVANTAGE`. A share this near below the line may well be above it."""
NORMAL_95 = 1.96
"""Standard errors. Two-sided 95 % of the normal distribution (Wilson interval)."""
FILTERED_EXITS = 0.05
"""Share of rollouts that exit for want of a gradient. Groups are filtered beyond it: no other cause has this exit."""
FILTER_SHOWS = 0.1
"""Share of completed groups. With so many, those admitted show whether they are filtered."""
FILTER_KEEPS = 0.5
"""Admitted over completed share of groups without a gradient. A filter lets through less than half."""
SAMPLED = 0.5
"""Share of the groups of ten steps. With fewer groups counted, the share is of a sample of the run."""

# ---- queue and staleness

STOCK = 1.5
"""Batches, mean. A queue that holds them is never short of one."""
ENOUGH = 0.90
"""Share of the capacity. Enough arrives but for what is dropped as stale."""
MUCH_STALE = 0.10
"""Share of what arrives. With a tenth dropped as stale, the wait is those drops."""
STALE_EXPLAINS = 0.05
"""Share of samples dropped as stale. So much explains a wait that arrivals do not predict."""
HOLDS = 0.10
"""Share of the time. Production held for a tenth of it is no moment between two batches."""
MUCH_HELD = 0.40
"""Share of the time. So long that what was in flight has ended meanwhile."""

# ---- engines

FULL = 0.85
"""Share of the requests that fit, or of the cache. More requests are served no faster beyond it."""
QUEUED = 0.2
"""Waiting over running requests, and queued over starting sandboxes. One or two wait for a moment anywhere; a fifth is
a queue."""
PLAINLY_QUEUED = 2.0
"""Requests waiting in all engines. Fewer are no queue, however few run."""
PLAINLY_FULL = 0.90
"""Share. Engines this full are full at any instant."""
WANTING_CACHE = 0.70
"""Share of the cache. Preemption for want of room begins when the cache was full a moment ago."""
PREEMPTED = 0.10
"""Preemptions per request. One request in ten computed again shows in throughput."""
BATCH_PART = 0.25
"""Share of a token's time that depends on the other requests in the batch, at the cap of requests."""
FULL_COMPUTE = 0.85
"""Share of a token's time that depends on the batch. Beyond it twice the requests make a tenth more tokens or less."""
FREE_CACHE = 0.7
"""Share of the KV cache. Below it requests that wait do not wait for room in it."""
MOST_ENGINES = 0.5
"""Share of the engines. With half of them dead the run crawls."""
FROZEN_SECONDS = 60.0
"""Seconds without a token while requests run (`generator_engines`)."""
STALLED_SECONDS = 60.0
"""Seconds of five minutes that engines stood still for new weights: a fifth of the window."""
WORKER_DIED = 0.8
"""Confidence. A run that replaces its workers goes on after one died; a collective that timed out ends its process."""
SILENT_SECONDS = 10.0
"""Seconds since the last answer of any engine. One failed read is a gap, two are an engine that is gone."""
IDLE_ENGINES = 0.30
"""Share of a rollout's time. Engines with room and less of it than this are no limiter."""

# ---- rollouts in flight

BELOW_CAP = 0.7
"""Share of the cap. Clearly below the cap."""
AT_CAP = 0.9
"""Share of the cap. All but those of a batch that just ended."""
BEYOND_LIMIT = 0.10
"""Share of the in-flight limit. Engines with more requests than so much beyond it serve other runs too."""
DETAILED_STATES = 3
"""States of rollouts. A source with fewer is a counter of all in flight, whatever the name of the state."""
MOST_SHARE = 0.95
"""Share. A rollout with more of its time outside the engines is outside every model here, and so is a share that is
lost, held or dropped beyond it."""
ALL_PLACED = 0.95
"""Share of a rollout's time that some source places; the rest is rounding and the moments between two phases."""
MOST_UNTOLD = 0.5
"""Share of a rollout's time that no source places. Half of it is no gap between two windows."""
MOST_OF = 0.5
"""Share of the rollouts in flight, or of their time, that decides."""
MOSTLY_INSIDE = 0.80
"""Share of a rollout's time in the engines. The rest decides nothing."""
LESS = 0.8
"""Ratio of two counts. A fifth is the difference of two windows."""
BUSY_SCORER = 0.9
"""Share of the time. A scorer this busy sets the pace."""
SCORER_PART = 0.75
"""Part of the logarithm of the gap that a scorer twice as fast closes if it is never idle: median of simulated runs."""
FOR_GROUP = 0.5
"""Share of the wait of ended rollouts for the rest of their group, if the scorer has time to spare. No log reports it
from the wait for a reward, so half counts as each."""
IDLE_SCORER = 0.5
"""Share of the time. A scorer idle for half of it sets no pace."""

# ---- sandboxes

FAILING = 0.10
"""Share of rollouts lost with their sandbox. Every tenth spoils most groups of sixteen."""
FAILING_CALLS = 0.20
"""Share of rollouts or tool calls that fail. If all rewards are zero too, a fifth shows why."""
REFUSED = 0.05
"""Share of new sandboxes. A provider that refuses every twentieth is at a limit of the account."""
FULL_QUOTA = 0.95
"""Share of a quota. The next groups take the rest, and a rollout beyond them finds no sandbox."""
MANY_BOOT = 0.20
"""Share of a rollout's time. With a fifth of the rollouts waiting for a sandbox, tools are not the first limiter."""
PLATEAU_SECONDS = 90.0
"""Seconds. `starting` that does not move for so long while others wait is at a limit: two reads of a provider."""
PLATEAU_SPREAD = 0.05
"""Share of the highest count. A count within it does not move."""
LEAST_STARTING = 4
"""Sandboxes. Fewer starting at once are no plateau."""

# ---- what is aborted, and what grows

ABORTED = 0.20
"""Share of rollouts aborted because others were faster."""
DRIFTED = 1.5
"""Ratio to the first steps. Half again as long as at the start."""
SYNC_TAIL = 1.5
"""Factor. A synchronous step has a tail by nature: from a third of the step lost others kept partial rollouts."""
SYNC_OTHERS = 1.33
"""Factor. Of a synchronous step, scoring, sandboxes and the like must gain a third to be its limiter."""
NEAR = 1.15
"""Factor. A tail of ten steps differs by it from that of thirty."""
LEFT = 0.9
"""Factor. A synchronous verdict stands until its gain is a tenth below the line it crossed."""
MUCH_OVERHEAD = 0.20
"""Share of the step. The first thing to change; the alert on weight sync fires at a quarter."""

# ---- the open step

WORKED = 0.5
"""Share of the last step's work. A step that has its batch counts once it has worked this long."""
LATE_STEP = 3.0
"""Times the usual step. Three steps without one."""
BEYOND = 1.5
"""Times the longest of the last ten steps. No checkpoint, and no step like the others."""
LATE_SECONDS = 20.0
"""Seconds. With two ticks until it is read, a stop is named within 30 s however short the steps are."""
STOPPED = 10.0
"""Times the usual step. A step that took so long was a stop, and is no measure of the others."""
IDLE_SECONDS = 40.0
"""Seconds without a request in any engine, in a late step: a slow scorer sends some every few seconds."""
HALF_LIMIT = 0.5
"""Share of max(6 x median, 30 min): more than one step that simply took longer."""
LEAST_LIMIT_SECONDS = 1800.0
"""Seconds. Lower bound of the longest a step may take (`trainer_stall_ratio`)."""
LIMIT = 6.0
"""Times the median step. The longest a step may take (`trainer_stall_ratio`)."""

# ---- which of the last steps belong to the present

WINDOW_STEPS = 10
"""Steps of the window. Fewer are all there ever were."""
EARLIER = 3
"""Steps. A mean over fewer has no spread worth the name."""
NEWER = 2
"""Steps. Two newer ones are no accident together."""
SIGNIFICANT = 4.5
"""Standard errors. Of ten steps that do not change, one in a thousand runs shows such a difference."""
SHARE_SPREAD = 0.03
"""Share of the step. Shares jitter by a few hundredths in the calmest run."""
SHARE_CHANGE = 0.20
"""Share of the step. A change that matters is a fifth of it."""
WORK_CHANGE = 1.25
"""Factor. A quarter more work is no jitter, which is a tenth of it; for ended steps and for the open one."""

# ---- windows of instants

LEAST_SECONDS = 120.0
"""Seconds. At least these instants are stored, because some engines are read only once per step."""
LEAST_WINDOW_SECONDS = 60.0
"""Seconds. Instants of at least this long are averaged, however short the judged steps are."""
MOST_SECONDS = 300.0
"""Seconds. At most the five minutes of every tick signal."""
INSTANTS = 20
"""Instants kept of an asynchronous run: one in 15 s of five minutes."""
SYNC_STEPS = 3.0
"""Steps. A synchronous step fills and empties the engines once: three whole ones are looked at."""
MOST_INSTANTS = 90
"""Instants kept of a synchronous run."""
LEAST_IDLE = 3
"""Instants without a request. One of a slow scorer's pauses is not seen three times."""
LEAST_BUSY = 6
"""Instants. Enough to have seen a tail."""

# ---- the queue's window

QUEUE_KEPT = 40
"""Samples of the queue's window."""
QUEUE_LEAST = 10
"""Samples. Fewer make no window."""
QUEUE_PER_STEP = 8
"""Samples per step: five steps of eight samples each see every batch leave."""
QUEUE_SPACING_SECONDS = 15.0
"""Seconds between two samples at least."""
STILL_STEPS = 3.0
"""Steps without a batch taken. That is no slow step."""
STILL_SECONDS = 120.0
"""Seconds without a batch taken at least: they hold the fastest steps."""
QUEUE_GAP = 3
"""Spacings. Samples further apart leave a hole in the window."""

# ---- evidence

MOST_EVIDENCE = 8
"""Facts shown with a verdict."""
SHOWN_STALE = 0.02
"""Share of samples dropped as stale that is worth a line."""
SHOWN_SHARE = 0.005
"""Share of a rollout's time that is worth a word."""
MOST_LIMITERS = 3
"""Other limiters shown with a verdict."""
IN_MINUTES_SECONDS = 120.0
"""Seconds. From two minutes on a duration is written in minutes: two significant digits."""
IN_HOURS_SECONDS = 7200.0
"""Seconds. From two hours on a duration is written in hours."""

# ---- completeness

WEIGHTS: Mapping[str, float] = {"wait": 0.25, "engines": 0.25, "place": 0.25, "queue": 0.15, "zero": 0.10}
"""Share of the evidence of an asynchronous run. The queue confirms the wait; groups decide one rule only."""
SYNC_WEIGHTS: Mapping[str, float] = {"phases": 0.5, "engines": 0.3, "zero": 0.2}
"""Share of the evidence of a synchronous run, of which the phases of the step show most."""

# ---- what-if

AT_BOUND = 0.8
"""Share of the staleness bound. From it on a mean is at its bound, because some samples are always fresher."""
FAR_LENGTH = 2.0
"""Factor of the response length. Beyond it, times that are not proportional to the length are no longer small."""
LEAST_CUT = 1e-9
"""Share of the length cap that the mean stays below at least: a mean at the cap has no finite scale."""
FLATTEST = 1e-6
"""Lower end of the search for a parameter. Beyond it the shown digits do not change."""
SHARPEST = 1e6
"""Upper end of the search for a parameter."""
HALVINGS = 80
"""Halvings of the search: more than the digits of a float."""

# ---- advice

COSTS: Mapping[str, float] = {"setting": 1.0, "restart": 1.2, "money": 3.0}
"""Divisor of a change's log gain in the order of changes: a restart loses minutes, and money is spent last."""
CAUSE_FIRST = 1.15
"""Factor of the log gain, in the order of changes, of the one that removes the cause of the verdict."""
FEW_MORE = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""Factors of the rollouts in flight that are compared."""
FEW_REQUESTS = 16.0
"""Requests per engine that do not slow each other down much on any engine that was recorded."""
MORE_UNSEEN = 4.0
"""Factor. The most at once while the engines have been seen at one load only."""
MORE_IN_FLIGHT = 8.0
"""Factor. More at once is tried in a second change."""
MOST_OF_GAIN = 0.97
"""Share of the best log gain of a lever: the smallest change that brings it is the one to make."""
LOAD_SHARES = (0.7, 0.3, 0.08)
"""Share of a token's time that depends on the other requests of the batch, where the run does not show it: most,
likely, least, of recorded engines."""
SHARPNESS = (5.0, 12.0, 40.0)
"""Exponent of how trainer and production share a queue: they wait for each other more (5) or less (40) at equal
rates."""
NOISE = 1.08
"""Factor. What a rate differs by from one half hour to the next of a run that does not change."""
SCALING = (0.5, 0.8, 1.0)
"""Exponent of a trainer's speed over its GPUs, of published runs: least, likely, most."""
SHARED_TIME = (0.125, 0.25, 0.5)
"""Shares of one side's GPUs whose move to the other is compared."""
MORE_CACHE = 2.0
"""Factor of the KV cache: a smaller type of its entries, or the memory of fewer others."""
MORE_VERSIONS = (1.0, 2.0, 3.0, 4.0)
"""Versions by which a wider staleness bound is compared."""
STILL_STALE = 0.5
"""Share of what is dropped as stale that is still dropped with one version more."""
UNSURE_LEVER = 0.75
"""Factor of the log gain in the order of changes, of a lever whose effect depends on tasks or on programs of others."""
HARMLESS = 0.97
"""Factor. A change of a balanced run gains at least this much in any case: the noise of a measurement below nothing."""
WORTH_A_SETTING = 1.08
"""Factor. Likely gain from which a setting of a balanced run is proposed although it may gain nothing."""
TWO_SIDES = 0.85
"""Factor of the log gain in the order of changes, of GPUs that move: both sides restart."""
THOUSANDS, THOUSAND = 10_000.0, 0.001
"""From here on the text of a change has thousands; a thousand in them."""
TWO_DIGITS = 10.0
"""From here on a value is shown as a whole number."""
KEPT_MARGIN = 0.9
"""Share of the staleness bound that a change may use."""
RARER = 4.0
"""Factor of an interval: checkpoints and evaluations a quarter as often."""
WARM = 0.9
"""Share of a boot that a warm pool saves."""
SPEED_BINS = 16
"""Numbers of requests per engine whose speed is kept, half powers of two."""
SPEED_LEAST = 24.0
"""Ticks. Engines that ran a number of requests for less than two minutes were on their way to another."""
SPEED_WEIGHT = 120.0
"""Ticks. The speed at a number of requests is the mean of about ten minutes at it."""
SPEED_SPREAD = 1.4
"""Ratio of the most to the fewest requests per engine from which a fit of its speed says something."""
SPEED_GAIN = 1 / 6
"""Share of tokens/s that twice the requests must add to pay: less is within the noise of a step, at more staleness."""
