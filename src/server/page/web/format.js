// Numbers as people read them.

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});

export const count = (n) => whole.format(n);

// 12.3, 0.45, 1,234: three digits that matter; whole numbers stay whole.
export function number(n) {
  if (!Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (size >= 100 || Number.isInteger(n)) return whole.format(n);
  return n.toFixed(size >= 10 ? 1 : 2);
}

export function bytes(n) {
  if (!Number.isFinite(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; ++unit; }
  return `${unit ? number(n) : whole.format(n)} ${units[unit]}`;
}

export function milliseconds(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${number(ms)} ms`;
  return seconds(ms / 1000);
}

export function seconds(s) {
  if (!Number.isFinite(s)) return "–";
  if (s < 60) return `${number(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
}

// The value below which the share `q` of the sorted numbers lies.
export function quantile(sorted, q) {
  if (sorted.length === 0) return NaN;
  return sorted[Math.min(sorted.length - 1, Math.ceil(q * sorted.length) - 1)];
}
