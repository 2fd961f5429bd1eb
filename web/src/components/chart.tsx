/** A line chart (uPlot): several series over a common x axis, with a legend and a text alternative. Drag to zoom,
 * double-click to reset. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "./chart.css";
import { t } from "../i18n";
import { ChartLegend } from "./chart-legend";
import { formatNumber } from "./format";
import { isDark, themeColor } from "./theme";

export interface Series {
  label: string;
  /** A CSS variable, such as "--series-a". */
  color: string;
  x: readonly number[];
  y: readonly (number | null)[];
  dashed?: boolean;
  points?: boolean;
  /** Drawn lightly behind the others, such as the values that another series smooths. */
  faint?: boolean;
}

export interface ChartProps {
  title: string;
  xLabel: string;
  yLabel: string;
  series: readonly Series[];
  logX?: boolean;
  logY?: boolean;
  /** Names of the x values 0, 1, 2, ... */
  categories?: readonly string[];
  height?: number;
}

export function Chart(props: ChartProps) {
  const { title, series, logX = false, logY = false, categories, height = 260 } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const hidden = useSignal<ReadonlySet<string>>(new Set());
  /** The index of the x value that is pointed at. */
  const pointed = useSignal<number | null>(null);
  // A new plot where anything but the numbers changes.
  const shape = JSON.stringify([
    series.map(({ label, color, dashed, points, faint }) => [label, color, dashed, points, faint]),
    props.xLabel, props.yLabel, logX, logY, categories, height, isDark.value,
  ]);
  useEffect(() => {
    const target = place.current!;
    const options = plotOptions(props, hidden.value, target.clientWidth, height);
    options.hooks = { setCursor: [({ cursor }) => (pointed.value = cursor.idx ?? null)] };
    const made = new uPlot(options, aligned(series, logX), target);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height }));
    resized.observe(target);
    return () => (resized.disconnect(), made.destroy());
  }, [shape]);
  const description = describe(props);
  useEffect(() => {
    const drawing = place.current!.querySelector(".u-wrap")!;
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", description);
  }, [shape, description]);
  useEffect(() => plot.current?.setData(aligned(series, logX)), [series]);
  const toggle = (label: string) => {
    const others = new Set(hidden.value);
    if (!others.delete(label)) others.add(label);
    hidden.value = others;
    plot.current!.setSeries(1 + series.findIndex((one) => one.label === label), { show: !others.has(label) });
  };
  const index = pointed.value, drawn = plot.current?.data;
  const x = index === null ? undefined : drawn?.[0][index];
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div class="plot" style={{ "--chart-height": `${height}px` }} ref={place} />
      <ChartLegend
        at={x === undefined ? "" : `${props.xLabel} ${categories?.[x] ?? x}`}
        series={series}
        values={series.map((_, i) => (index === null ? null : drawn?.[i + 1]?.[index]))}
        hidden={hidden.value}
        onToggle={toggle}
      />
    </figure>
  );
}

/** What the chart shows, in words. */
function describe({ title, series, xLabel }: ChartProps): string {
  const parts = series.filter(({ faint }) => !faint).flatMap(({ label, x, y }) => {
    const known = y.flatMap((value, i) => (value === null ? [] : [{ x: x[i]!, value }]));
    const first = known[0], last = known.at(-1);
    if (!first || !last) return [];
    return [t("chart.series", { label, axis: xLabel, from: formatNumber(first.value), start: first.x, to: formatNumber(last.value), end: last.x })];
  });
  return [title, ...parts].join(". ");
}

/** uPlot wants one x for all series. */
function aligned(series: readonly Series[], logX: boolean): uPlot.AlignedData {
  if (!series.length) return [[]];
  // A log axis has no zero.
  const tables = series.map(({ x, y }): uPlot.AlignedData => {
    const kept = x.map((_, i) => i).filter((i) => !logX || x[i]! > 0);
    return [kept.map((i) => x[i]!), kept.map((i) => y[i] ?? null)];
  });
  return uPlot.join(tables);
}

function plotOptions(props: ChartProps, hidden: ReadonlySet<string>, width: number, height: number): uPlot.Options {
  const { series, xLabel, yLabel, logX, logY, categories } = props;
  const ink = themeColor("--faint"), edge = themeColor("--edge");
  const axis = { stroke: ink, grid: { stroke: edge, width: 1 }, ticks: { stroke: edge, width: 1 }, font: "12px system-ui", labelFont: "12px system-ui", labelSize: 18 };
  const name = (value: number) => categories?.[value] ?? "";
  return {
    width: Math.max(width, 120),
    height,
    scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { distr: logY ? 3 : 1 } },
    axes: [
      { ...axis, label: xLabel, ...(categories ? { values: (_: uPlot, marks: number[]) => marks.map(name), incrs: [1, 2, 5, 10] } : {}) },
      { ...axis, label: yLabel, size: 64, values: (_: uPlot, marks: number[]) => marks.map((mark) => (mark === null ? "" : formatNumber(mark))) },
    ],
    series: [
      {},
      ...series.map(({ label, color, dashed, points, faint }): uPlot.Series => ({
        show: !hidden.has(label),
        stroke: themeColor(color),
        alpha: faint ? 0.3 : 1,
        width: faint ? 1 : 2,
        dash: dashed ? [6, 4] : undefined,
        spanGaps: true,
        points: { show: Boolean(points), size: 6, fill: themeColor(color) },
      })),
    ],
    padding: [10, categories ? 44 : 20, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 7 } },
  };
}
