import { beforeAll, expect, test, vi } from "vitest";

beforeAll(() => {
  vi.stubGlobal("localStorage", { getItem: () => "en", setItem: () => undefined });
  vi.stubGlobal("document", { documentElement: {} });
});

test("flags and settings become the names of the form's fields", async () => {
  const { withFieldNames } = await import("./field-names");
  expect(withFieldNames("add text, or lower --depth or --matrix-lr")).toBe("add text, or lower “Depth” or “Learning rate (Muon)”");
  expect(withFieldNames("a smaller --width, or --from-step 3")).toBe("a smaller width, or from step 3");
  expect(withFieldNames("vocab_size=12 must be larger")).toBe("“Vocabulary size” 12 must be larger");
  expect(withFieldNames("Expected `int` >= 1 - at `$.steps`")).toBe("“Steps”: Expected `int` >= 1");
  expect(withFieldNames("a -- b, x--depth, other=3")).toBe("a -- b, x--depth, other=3");
});

test("the last error that a process printed", async () => {
  const { printedError } = await import("./field-names");
  const output = "tokenizing\nerror: not enough memory\nfix: a smaller --depth\n";
  expect(printedError(output)).toEqual({ message: "not enough memory", fix: "a smaller “Depth”" });
  expect(printedError("error: no more\n")).toEqual({ message: "no more", fix: "" });
  expect(printedError("step 1\n")).toBeNull();
});
