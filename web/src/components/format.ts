/** Numbers as people read them; the same rules as in normscope's terminal output. */

/** 1234567 -> 1.23M */
export function formatCount(value: number): string {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "K"]] as const) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Math.round(value));
}

/** 1536 -> 1.5 KB */
export function formatBytes(bytes: number): string {
  for (const [size, unit] of [[2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "KB"]] as const) {
    if (bytes >= size) return `${(bytes / size).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

/** 3725 -> 1:02:05 */
export function formatDuration(seconds: number): string {
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const shown = parts[0] ? parts : parts.slice(1);
  return shown.map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
}

/** 0.1234 -> 12.3%, 0.00012 -> 0.01% */
export function formatPercent(share: number): string {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.01) return "<0.01%";
  return `${percent >= 99.95 || percent === 0 ? percent.toFixed(0) : percent >= 1 ? percent.toFixed(1) : percent.toFixed(2)}%`;
}

/** A measured number in a few significant digits. */
export function formatNumber(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const isPlain = size === 0 || (size < 1e5 && size >= 1e-3);
  return (isPlain ? String(Number(value.toPrecision(digits))) : value.toExponential(1)).replace(/^-/, "−");
}

/** A number in a cell: two decimals at most, small numbers as zero. */
export function formatCell(value: number): string {
  if (Math.abs(value) >= 1e5) return formatNumber(value);
  return String(Number(value.toFixed(2))).replace("-", "−");
}

/** A number with two decimals, to stand below others. */
export function formatFixed(value: number): string {
  const text = value.toFixed(2);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}
