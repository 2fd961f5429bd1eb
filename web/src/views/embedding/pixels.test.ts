import { expect, test } from "vitest";
import { colorAt, paint, patchOfPixel } from "./pixels";

test("a painted pixel has its color, in all three channels, and only that pixel", () => {
  const black = new Array<number>(12).fill(0); // 2 x 2 pixels
  const painted = paint(black, 2, 3, "#ff8000");
  expect([0, 1, 2, 3].map((pixel) => colorAt(painted, 2, pixel))).toEqual(["#000000", "#000000", "#000000", "#ff8000"]);
  expect(colorAt(painted, 2, 4 + 3)).toBe("#ff8000"); // a place in the second channel
  expect(black).toEqual(new Array<number>(12).fill(0));
});

test("each pixel belongs to a patch", () => {
  const places = [
    [0, 2, 4, 6, 8, 10],
    [1, 3, 5, 7, 9, 11],
  ];
  expect(patchOfPixel(places, 2)).toEqual([0, 1, 0, 1]);
});
