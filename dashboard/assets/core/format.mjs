// Numbers as `dashboard/widgets/format.py` writes them, for values under the cursor; a test compares the two.

const trim = (text) => (text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text);
const group = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  // Python writes at least two digits of exponent.
  if (size < 0.001) return value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
  return trim(value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.1 ? 2 : 3));
}

// From which size on, unit, suffix.
/** @type {[number, number, string][]} */
const SCALES = [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]];

export function number(value) {
  const size = Math.abs(value);
  for (const [limit, unit, suffix] of SCALES) if (size >= limit) return digits(value / unit) + suffix;
  return size >= 999.5 ? group(value.toFixed(0)) : digits(value);
}

export const money = (value) => "$" + (value === 0 ? "0" : Math.abs(value) < 999.995 ? value.toFixed(2) : number(value));

// Unit -> its symbol; W and Hz take the prefix of a large number: `1.98 GHz`.
const SYMBOLS = { hours: "h", celsius: "°C", watts: "W", hertz: "Hz" };

// A value and its unit as shown: (0.64, "ratio") is ["64", "%"].
/** @returns {[string, string]} */
export function parts(value, unit) {
  if (value === null || value === undefined || !isFinite(value)) return ["–", ""];
  if (unit === "ratio") {
    const percent = 100 * value;
    return [Math.abs(percent) >= 9.95 ? percent.toFixed(0) : percent.toFixed(1).replace(/\.0$/, ""), "%"];
  }
  if (unit === "seconds") {
    const size = Math.abs(value);
    if (size > 0 && size < 0.001) return [number(value * 1e6), "µs"];
    return size >= 7200 ? [number(value / 3600), "h"] : size >= 120 ? [number(value / 60), "min"] : [number(value), "s"];
  }
  if (unit === "usd" || unit === "usd/h") return [money(value), unit.slice(3)];
  const figure = number(value), symbol = SYMBOLS[unit] ?? unit ?? "";
  const prefixed = (symbol === "W" || symbol === "Hz") && /[a-z]$/i.test(figure);
  return prefixed ? [figure.slice(0, -1), figure.slice(-1) + symbol] : [figure, symbol];
}

// The same in one string.
export function text(value, unit) {
  const [figure, word] = parts(value, unit);
  return figure + (word === "%" || word === "/h" || !word ? word : " " + word);
}

export function age(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return s + " s ago";
  if (s < 5400) return Math.round(s / 60) + " min ago";
  return s < 172800 ? Math.round(s / 3600) + " h ago" : Math.round(s / 86400) + " d ago";
}

// How long: `3 s`, `12 min`, `5 h 20 min`, `3 d`.
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds)), hours = Math.floor(s / 3600), minutes = Math.floor((s % 3600) / 60);
  if (s < 90) return s + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  return s < 172800 ? hours + " h" + (minutes ? " " + minutes + " min" : "") : Math.round(s / 86400) + " d";
}

// Ids of 24 and more hexadecimal digits are cut to their first 8; the element's title has the whole.
export const id = (text) => (/^[0-9a-f-]{24,}$/i.test(text) ? text.slice(0, 8) + "…" : text);

// `ms` is already shifted to local time, as the charts' x values are.
export const clock = (ms, wide) => new Date(ms).toISOString().slice(wide ? 5 : 11, wide ? 16 : 19).replace("T", " ");
