import { describe, expect, test } from "vitest";
import { cellName, coordinates, flatIndex, neighbor } from "./cells";

const SHAPE = [2, 4, 3, 5];

test("an index and its coordinates belong together", () => {
  for (let index = 0; index < 2 * 4 * 3 * 5; index++) expect(flatIndex(coordinates(index, SHAPE), SHAPE)).toBe(index);
  expect(coordinates(61, SHAPE)).toEqual([1, 0, 0, 1]);
  expect(cellName(61, SHAPE, ["n", "c", "h", "w"])).toBe("n=1 c=0 h=0 w=1");
});

describe("neighbor", () => {
  const from = (at: number[], key: string) => coordinates(neighbor(flatIndex(at, SHAPE), SHAPE, key), SHAPE);
  test("moves within a box", () => {
    expect(from([0, 1, 1, 1], "ArrowRight")).toEqual([0, 1, 1, 2]);
    expect(from([0, 1, 1, 1], "ArrowUp")).toEqual([0, 1, 0, 1]);
    expect(from([0, 1, 1, 1], "PageDown")).toEqual([0, 2, 1, 1]);
  });
  test("goes on in the next row and the next box", () => {
    expect(from([0, 1, 1, 4], "ArrowRight")).toEqual([0, 1, 2, 0]);
    expect(from([0, 3, 2, 1], "ArrowDown")).toEqual([1, 0, 0, 1]);
    expect(from([1, 0, 0, 2], "ArrowUp")).toEqual([0, 3, 2, 2]);
  });
  test("stays at the ends, and for other keys", () => {
    expect(from([1, 3, 2, 4], "ArrowRight")).toEqual([1, 3, 2, 4]);
    expect(from([0, 0, 0, 0], "PageUp")).toEqual([0, 0, 0, 0]);
    expect(from([0, 1, 1, 1], "a")).toEqual([0, 1, 1, 1]);
    expect(neighbor(1, [2, 3], "PageDown")).toBe(1);
  });
});
