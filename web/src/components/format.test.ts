import { expect, test } from "vitest";
import { formatCell, formatFixed, formatNumber, formatPercent } from "./format";

test("numbers are short", () => {
  expect(formatNumber(-1.23456)).toBe("−1.235");
  expect(formatNumber(4.4e-16)).toBe("4.4e-16");
  expect(formatNumber(null)).toBe("–");
  expect([formatCell(-0.001), formatCell(2), formatCell(1234567)]).toEqual(["0", "2", "1.2e+6"]);
  expect([formatFixed(-0.001), formatFixed(2), formatFixed(-1.5)]).toEqual(["0.00", "2.00", "−1.50"]);
  expect([0, 1e-6, 0.0012, 0.123, 0.9999].map(formatPercent)).toEqual(["0%", "<0.01%", "0.12%", "12.3%", "100%"]);
});
