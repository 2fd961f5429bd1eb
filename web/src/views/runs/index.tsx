/** The tab "Runs": the list of runs, curves of one or several, and the run that is open. */
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { addressed, addressOf } from "../../address";
import { call } from "../../api";
import { Chart } from "../../components/chart";
import { ErrorBox } from "../../components/error-box";
import { t } from "../../i18n";
import { METRICS, seriesOf, type Metric } from "./curves";
import { feedOf, Follow } from "./feed";
import { RunTable } from "./list";
import { OpenRun } from "./run";
import { StartForm } from "./start";
import type { RunList } from "./types";
import "./runs.css";

const POLL = 3000;
/** Runs in one chart: each that is training keeps a connection open, and browsers allow six. */
const MAX_COMPARED = 4;

/** Kept while other tabs are open. */
const open = signal<string | null>(null);
const compared = signal<string[]>([]);

export function openRun(name: string): void {
  open.value = name;
  compared.value = compared.value.filter((other) => other !== name);
  history.replaceState(null, "", addressOf("runs", name));
}

export default function RunsView() {
  const list = useSignal<RunList | null>(null);
  const error = useSignal<unknown>(null);
  const refresh = async () => {
    try {
      list.value = await call<RunList>("runs/list");
      error.value = null;
      const starting = list.value.starting.filter((job) => job.status === "running");
      const names = [...starting, ...list.value.runs].map((one) => one.name); // the newest first
      const wanted = open.value ?? (addressed() || (names[0] ?? null));
      if (open.value === null && wanted !== null) open.value = wanted;
    } catch (problem) {
      error.value = problem;
    }
  };
  useEffect(() => {
    let timer = 0;
    let left = false;
    // The next request waits for the answer: a slow server is not asked twice at once.
    const poll = async () => {
      if (!document.hidden || list.value === null) await refresh();
      if (!left) timer = window.setTimeout(() => void poll(), POLL);
    };
    void poll();
    return () => ((left = true), clearTimeout(timer));
  }, []);
  const data = list.value;
  const shown = [...(open.value ? [open.value] : []), ...compared.value.filter((name) => name !== open.value)];
  // A run that trains again is followed again.
  const session = (name: string) => {
    const run = data?.runs.find((one) => one.name === name);
    const job = run?.job ?? data?.starting.find((one) => one.name === name);
    return `${job?.number ?? 0} ${run?.status === "training"} ${run !== undefined}`;
  };
  return (
    <>
      <h1>{t("runs.title")}</h1>
      <p class="faint">{t("runs.intro")}</p>
      {data && shown.filter((name) => isKnown(data, name)).map((name) => <Follow key={name} name={name} session={session(name)} onEnd={() => void refresh()} />)}
      <div class="runs">
        <StartForm names={data?.runs.map((run) => run.name) ?? []} onStart={(name) => (openRun(name), void refresh())} />
        <section class="panel">
          <h2>{t("runs.all")}</h2>
          <ErrorBox error={error.value} />
          <RunTable list={data} open={open.value} compared={compared.value} most={MAX_COMPARED} onOpen={openRun} onCompare={compare} />
        </section>
        {shown.length > 0 && <Curves names={shown} />}
        {open.value && data && <OpenRun key={open.value} name={open.value} list={data} onChange={refresh} />}
      </div>
    </>
  );
}

const isKnown = (list: RunList, name: string) => [...list.runs, ...list.starting].some((one) => one.name === name);

function compare(name: string, on: boolean): void {
  const others = compared.value.filter((other) => other !== name);
  compared.value = on ? [...others, name] : others;
}

function Curves({ names }: { names: string[] }) {
  const metric = useSignal<Metric>("loss");
  const logX = useSignal(false);
  const series = seriesOf(metric.value, names.map((name) => ({ name, data: feedOf(name).value })));
  return (
    <section class="panel">
      <h2>{t("runs.curves")}</h2>
      <div class="row">
        <label class="field">
          {t("runs.metric")}
          <select value={metric.value} onChange={(event) => (metric.value = event.currentTarget.value as Metric)}>
            {METRICS.map((name) => (
              <option key={name} value={name}>
                {t(`runs.metric.${name}`)}
              </option>
            ))}
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={logX.value} onChange={(event) => (logX.value = event.currentTarget.checked)} />
          {t("runs.log_x")}
        </label>
      </div>
      <Chart
        title={t(`runs.metric.${metric.value}`)}
        xLabel={t("runs.step")}
        yLabel={t(`runs.unit.${metric.value}`)}
        series={series}
        logX={logX.value}
        logY={metric.value === "grad_norm"}
        height={320}
      />
    </section>
  );
}
