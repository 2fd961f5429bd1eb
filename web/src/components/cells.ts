/** Cells of a tensor: a flat index and its coordinates, and how a cell is written. */

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
