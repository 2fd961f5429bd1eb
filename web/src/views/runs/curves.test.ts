import { beforeAll, expect, test, vi } from "vitest";

beforeAll(() => {
  vi.stubGlobal("localStorage", { getItem: () => "en", setItem: () => undefined });
  vi.stubGlobal("document", { documentElement: {} });
});

test("smoothing gives the numbers of normscope.render.curves.smooth", async () => {
  const { smooth } = await import("./curves");
  const found = smooth({ x: [1, 2, 3, 4, 5, 6], y: [9, 6, 5, 4, 3, 5] });
  expect(found).toEqual({ x: [1, 2, 3, 4, 5, 6], y: [9, 6, 5, 4, 4, 4] });
  expect(smooth({ x: [1, 2], y: [null, 3] })).toEqual({ x: [2], y: [3] });
});
