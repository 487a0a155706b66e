// The entry: imports every part of the page, registers Dash's callbacks, and only then starts Dash.
import { callbacks } from "./core/live.mjs";

export * from "./core/state.mjs";
export * as format from "./core/format.mjs";
export * from "./core/dom.mjs";
export * from "./core/cells.mjs";
export * from "./core/theme.mjs";
export * from "./core/nav.mjs";
export * from "./widgets/answer.mjs";
export * from "./widgets/attach.mjs";
export * from "./widgets/spark.mjs";
export * from "./widgets/card.mjs";
export * from "./widgets/legend.mjs";
export * from "./widgets/split.mjs";
export * from "./widgets/chart.mjs";
export * from "./widgets/series.mjs";
export * from "./widgets/bands.mjs";
export * from "./widgets/step_axis.mjs";
export * from "./widgets/svg.mjs";
export * from "./core/live.mjs";
export * from "./core/news.mjs";
export * from "./widgets/cursor.mjs";
export * from "./widgets/events.mjs";
export * from "./widgets/verdicts.mjs";
export * from "./widgets/chart_data.mjs";
export * from "./widgets/chart_menu.mjs";
export * from "./core/address.mjs";
export * from "./widgets/alerts.mjs";
export * from "./widgets/silence.mjs";
export * from "./widgets/sandboxes.mjs";
export * from "./widgets/find.mjs";
export * from "./widgets/rollouts.mjs";
export * from "./widgets/rollout_table.mjs";
export * from "./widgets/timeline.mjs";
export * from "./widgets/generator.mjs";
export * from "./widgets/trainer.mjs";
export * from "./widgets/preflight.mjs";
export * from "./widgets/what_if.mjs";
export * from "./widgets/runs.mjs";
export * from "./widgets/compare.mjs";
export * from "./widgets/targets.mjs";
export * from "./widgets/help.mjs";
export * from "./core/keys.mjs";

// A module runs after the document's other scripts, so Dash's own are there.
window.dash_clientside = Object.assign({}, window.dash_clientside, { rollscope: callbacks });
new window.DashRenderer();
