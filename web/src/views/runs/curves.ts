/** From the curves of runs to the series of a chart. */
import type { Series } from "../../components/chart";
import { t } from "../../i18n";
import type { Curve, CurveName, RunData } from "./feed";

/** A centered moving average, as in normscope's reports: narrow at the start, where a curve falls fast. */
export function smooth({ x, y }: Curve): Curve {
  const known = y.map((value, i) => ({ x: x[i]!, value })).filter(({ value }) => value !== null) as { x: number; value: number }[];
  const sums = [0];
  for (const { value } of known) sums.push(sums.at(-1)! + value);
  const most = Math.min(Math.max(Math.floor(known.length / 50), 2), 100);
  return {
    x: known.map((point) => point.x),
    y: known.map((_, i) => {
      const reach = Math.min(most, Math.floor(i / 4));
      const start = i - reach, stop = Math.min(i + reach + 1, known.length);
      return (sums[stop]! - sums[start]!) / (stop - start);
    }),
  };
}

export const METRICS = ["loss", "bits_per_byte", "grad_norm", "lr_scale", "tokens_per_second"] as const;
export type Metric = (typeof METRICS)[number];

export const COLORS = ["--series-a", "--series-b", "--series-c", "--series-d", "--series-e", "--series-f"];

/** The series of a metric for one run in detail, or for several to compare. */
export function seriesOf(metric: Metric, runs: { name: string; data: RunData }[]): Series[] {
  const several = runs.length > 1;
  return runs.flatMap(({ name, data }, i) => {
    const color = COLORS[i % COLORS.length]!;
    const label = (text: string) => (several ? `${name}: ${text}` : text);
    const line = (curve: Curve, text: string, more: Partial<Series> = {}): Series => ({ label: label(text), color, ...curve, ...more });
    const curve = (of: CurveName) => data.curves[of];
    const end = Math.max(data.step, 1);
    const level = (value: number | null, text: string): Series[] =>
      value === null ? [] : [{ label: label(text), color: several ? color : "--faint", x: [Math.min(1, end), end], y: [value, value], dashed: true }];
    const own = several ? {} : { color: "--series-b" };
    if (metric === "loss") {
      return [
        ...(several ? [] : [line(curve("loss"), t("runs.each_step"), { faint: true })]),
        line(smooth(curve("loss")), t("runs.training_loss")),
        line(curve("validation"), t("runs.validation_loss"), { points: true, dashed: several, ...own }),
        ...level(data.floorNats, t("runs.floor")),
      ];
    }
    if (metric === "bits_per_byte") {
      return [line(curve("bits_per_byte"), t("runs.validation"), { points: true }), ...level(data.floor, t("runs.floor"))];
    }
    if (metric === "lr_scale") return [line(curve(metric), t("runs.metric.lr_scale"))];
    return [
      ...(several ? [] : [line(curve(metric), t("runs.each_step"), { faint: true })]),
      line(smooth(curve(metric)), t("runs.smoothed")),
    ];
  });
}
