/** Pixels of an image (c, h, w) with brightness from 0 to 1, as CSS colors and back. */

/** The color of a pixel, given its place in any of the three channels. */
export function colorAt(pixels: number[], size: number, place: number): string {
  const count = size * size;
  const pixel = place % count;
  const channels = [0, 1, 2].map((channel) => Math.round(255 * pixels[channel * count + pixel]!));
  return `#${channels.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** The image with one pixel in another color, given as #rrggbb. */
export function paint(pixels: number[], size: number, pixel: number, color: string): number[] {
  const changed = [...pixels];
  for (const channel of [0, 1, 2]) {
    const start = 1 + 2 * channel;
    changed[channel * size * size + pixel] = parseInt(color.slice(start, start + 2), 16) / 255;
  }
  return changed;
}

/** The patch that each pixel belongs to. */
export function patchOfPixel(places: number[][], size: number): number[] {
  const found: number[] = [];
  places.forEach((patch, s) => patch.forEach((place) => (found[place % (size * size)] = s)));
  return found;
}
