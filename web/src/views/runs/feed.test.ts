import { expect, test } from "vitest";
import { emptyRun, receive } from "./feed";
import type { FollowItem, RunEvent } from "./types";

const position = { bytes: 10, crc32: "01234567", format: 1 };
const step = (number: number, loss: number | null): RunEvent => ({
  kind: "step", step: number, loss, grad_norm: 1, lr_scale: 1, tokens_per_second: 5, seconds: 0.5,
});
const item = (events: RunEvent[], more: Partial<FollowItem> = {}): FollowItem => ({
  events, position, restarted: false, training: true, job: null, ...more,
});

test("events add up, and a curve with new points is a new object", () => {
  const one = receive(emptyRun(), item([step(1, 3), step(2, null)]));
  const two = receive(one, item([step(3, 2)]));
  expect(two.curves.loss).toEqual({ x: [1, 2, 3], y: [3, null, 2] });
  expect(two.curves.loss).not.toBe(one.curves.loss);
  expect([two.step, two.secondsPerStep, two.position]).toEqual([3, 0.5, position]);
});

test("a heartbeat changes nothing", () => {
  const data = receive(emptyRun(), item([step(1, 3)]));
  expect(receive(data, { heartbeat: true } as FollowItem)).toBe(data);
});

test("after a restart only the new events count", () => {
  const data = receive(receive(emptyRun(), item([step(1, 3), step(2, 2)])), item([step(1, 9)], { restarted: true }));
  expect(data.curves.loss).toEqual({ x: [1], y: [9] });
  expect(data.step).toBe(1);
});
