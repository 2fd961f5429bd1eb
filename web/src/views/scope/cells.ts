/** Cells of a tensor: a flat index and its coordinates, and how a cell and a number are written. */

export function coordinates(index: number, shape: number[]): number[] {
  const found: number[] = [];
  for (const size of [...shape].reverse()) {
    found.unshift(index % size);
    index = Math.floor(index / size);
  }
  return found;
}

export function flatIndex(at: number[], shape: number[]): number {
  return at.reduce((index, coordinate, axis) => index * shape[axis]! + coordinate, 0);
}

/** The cell that an arrow key leads to from this one: along the last axis, the one before, and with the page keys the one before that. */
export function neighbor(index: number, shape: number[], key: string): number {
  const rank = shape.length;
  const steps: Record<string, [number, number]> = {
    ArrowRight: [rank - 1, 1],
    ArrowLeft: [rank - 1, -1],
    ArrowDown: [rank - 2, 1],
    ArrowUp: [rank - 2, -1],
    PageDown: [rank - 3, 1],
    PageUp: [rank - 3, -1],
  };
  const step = steps[key];
  if (!step) return index;
  const at = coordinates(index, shape);
  // Beyond the edge of a box, go on in the next one.
  for (let axis = step[0]; axis >= 0; axis--) {
    at[axis] = at[axis]! + step[1];
    if (at[axis]! >= 0 && at[axis]! < shape[axis]!) return flatIndex(at, shape);
    at[axis] = step[1] > 0 ? 0 : shape[axis]! - 1;
  }
  return index;
}

export function cellName(index: number, shape: number[], axes: string[]): string {
  return coordinates(index, shape)
    .map((coordinate, axis) => `${axes[axis]}=${coordinate}`)
    .join(" ");
}

/** A number in a cell: short, small numbers as zero. */
export function short(value: number, digits = 2): string {
  if (Math.abs(value) >= 1e5) return format(value);
  return String(Number(value.toFixed(digits))).replace("-", "−");
}

/** A number with a fixed number of decimals, to stand below others. */
export function fixed(value: number, digits = 2): string {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A number with as many digits as are useful, without an empty fraction. */
export function format(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 10 ** -digits)) return value.toExponential(1);
  return String(Number(value.toFixed(digits))).replace("-", "−");
}
