// What the parts of the page share. This module imports nothing, so it is there before any other one runs.

// `boot`: what the server sent with the page load; `view`: the page's cells; `sparks`: points of the small lines, by key;
// `zoom`: [start, end] of a zoom, or null; `hovering`: the cursor is on a chart; `once`: parameters of the next request
// only; `tz`: the reader's time zone, ms that are added to UTC.
export const state = { boot: null, view: {}, sparks: {}, zoom: null, hovering: false, once: {}, tz: -60000 * new Date().getTimezoneOffset() };

// Functions that draw rows from cells; called with the changed cells.
export const drawers = [];
// Functions that draw time series without Plotly; called for new points and when the window moves.
export const painters = [];
