/** The run that is open: progress, what can be done with it, signal per layer, samples, notices and output. */
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { addressOf } from "../../address";
import { ApiError, call } from "../../api";
import { Chart } from "../../components/chart";
import { ErrorBox } from "../../components/error-box";
import { formatCount, formatDuration, formatNumber } from "../../components/format";
import { useAction } from "../../components/use-action";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { printedError, withFieldNames } from "./field-names";
import { feedOf, type RunData } from "./feed";
import { StartingStatus, Status } from "./list";
import type { Job, Layer, RunDetails, RunList, RunSummary } from "./types";

/** Steps of which the signal is drawn: the first and the last. */
const SIGNAL_COLORS = ["--series-d", "--series-a"];

export function OpenRun({ name, list, onChange }: { name: string; list: RunList; onChange: () => void }) {
  const data = feedOf(name).value;
  const run = list.runs.find((one) => one.name === name);
  const starting = list.starting.find((one) => one.name === name);
  const request = useSignal<{ run: string } | null>(null);
  const details = useResult<RunDetails>("runs/details", request).value.data;
  const exists = run !== undefined;
  useEffect(() => {
    if (exists) request.value = { run: name };
  }, [exists, run?.steps]);
  return (
    <>
      <section class="panel">
        <h2>{name}</h2>
        <p class="faint model">{details?.model ?? ""}</p>
        {details?.extension && <p class="faint">{details.extension}</p>}
        <Progress data={data} run={run} starting={starting} />
        {run ? <Actions run={run} onChange={onChange} /> : starting && <StopStarting job={starting} onChange={onChange} />}
        <ErrorBox error={data.error} />
        <Output data={data} />
      </section>
      {data.signals.length > 0 && <Signals signals={data.signals} />}
      {data.samples.length > 0 && <Samples samples={data.samples} />}
      {data.notices.length > 0 && (
        <section class="panel">
          <h2>{t("runs.notices")}</h2>
          <ul class="notices">
            {data.notices.map((notice, i) => (
              <li key={i}><span class="faint">{t("runs.at_step", { step: notice.step })}</span> {withFieldNames(notice.text)}</li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function Progress({ data, run, starting }: { data: RunData; run: RunSummary | undefined; starting: Job | undefined }) {
  const steps = Math.max(data.steps, run?.steps ?? 0);
  const last = (name: keyof RunData["curves"]) => data.curves[name].y.at(-1) ?? null;
  const bits = last("bits_per_byte");
  const left = data.training && data.secondsPerStep !== null ? (steps - data.step) * data.secondsPerStep : null;
  const speed = last("tokens_per_second");
  return (
    <>
      <div class="row">
        {run ? <Status run={run} /> : starting && <StartingStatus job={starting} />}
        <progress max={steps || 1} value={data.step} aria-label={t("runs.progress")} />
        <span>{t("runs.steps_of", { step: data.step, steps: steps || "?" })}</span>
      </div>
      <dl class="tiles">
        <Tile name={t("runs.training_loss")}>{formatNumber(last("loss"))}</Tile>
        <Tile name={t("runs.validation_loss")}>{formatNumber(last("validation"))}</Tile>
        <Tile name={t("runs.metric.bits_per_byte")}>{formatNumber(bits)}</Tile>
        <Tile name={t("runs.floor")}>{formatNumber(data.floor)}</Tile>
        <Tile name={t("runs.above_floor")}>{formatNumber(bits === null || data.floor === null ? null : bits - data.floor)}</Tile>
        <Tile name={t("runs.metric.tokens_per_second")}>{speed === null ? "–" : formatCount(speed)}</Tile>
        <Tile name={t(data.finished ? "runs.time" : "runs.left")}>
          {data.finished?.seconds != null ? formatDuration(data.finished.seconds) : left === null ? "–" : formatDuration(left)}
        </Tile>
      </dl>
    </>
  );
}

function Tile({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Requests about a run, and the error of the last one. */
function useActions(run: string, onChange: () => void) {
  const action = useAction();
  const act = (name: string, request: object) => () =>
    action.run(async () => {
      await call(name, { run, ...request });
    }).then(onChange);
  return { act, problem: <ErrorBox error={action.error} retry={action.retry} words={withFieldNames} /> };
}

/** A run that has no folder yet can only be stopped. */
function StopStarting({ job, onChange }: { job: Job; onChange: () => void }) {
  const { act, problem } = useActions(job.name, onChange);
  return (
    <>
      <div class="row actions">
        <button type="button" disabled={job.status !== "running" || job.stopping} onClick={act("runs/stop", {})}>
          {t("model.stop")}
        </button>
      </div>
      {problem}
    </>
  );
}

function Actions({ run, onChange }: { run: RunSummary; onChange: () => void }) {
  const { act, problem } = useActions(run.name, onChange);
  const steps = useSignal(2 * run.steps);
  useEffect(() => void (steps.value = 2 * run.steps), [run.steps]); // after it was extended
  const training = run.status === "training" || run.job?.status === "running";
  return (
    <>
      <div class="row actions">
        <button type="button" disabled={!training || run.job?.stopping === true && run.job.status === "running"} onClick={act("runs/stop", {})}>
          {t("runs.stop")}
        </button>
        <button type="button" disabled={training || run.status === "done"} onClick={act("runs/resume", {})}>
          {t("runs.resume")}
        </button>
        <label class="field">
          {t("runs.extend_to")}
          <input type="number" min={run.steps + 1} value={steps.value} onInput={(event) => (steps.value = event.currentTarget.valueAsNumber)} />
        </label>
        <button type="button" disabled={training || !(steps.value > run.steps)} onClick={act("runs/resume", { steps: steps.value })}>
          {t("runs.extend")}
        </button>
        <a href={`report/${encodeURIComponent(run.name)}`} target="_blank" rel="noopener">{t("runs.report")}</a>
        <a href={addressOf("playground", run.name)}>{t("runs.generate")}</a>
      </div>
      {problem}
    </>
  );
}

function Output({ data }: { data: RunData }) {
  const job = data.job;
  if (!job) return null;
  const error = printedError(job.output);
  return (
    <>
      {job.status === "failed" && <ErrorBox error={new ApiError(error?.message ?? t("runs.failed"), error?.fix)} />}
      <details open={job.status === "failed" && !error}>
        <summary>{t("runs.output")}</summary>
        <pre class="box output" tabIndex={0}>{job.output}</pre>
      </details>
    </>
  );
}

function Signals({ signals }: { signals: RunData["signals"] }) {
  const shown = signals.length > 1 ? [signals[0]!, signals.at(-1)!] : signals;
  const categories = shown[0]!.layers.map((layer) => layer.name.replace("blocks.", ""));
  const series = (field: "rms" | "grad_rms") =>
    shown.map(({ step, layers }, i) => ({
      label: t("runs.at_step", { step }),
      color: SIGNAL_COLORS[i + 2 - shown.length]!,
      x: layers.map((_, index) => index),
      // A log axis has no zero: a zero head gives the first gradients none.
      y: layers.map((layer: Layer) => layer[field] || null),
      points: true,
    }));
  const gradients = series("grad_rms").filter(({ y }) => y.some((one) => one !== null)); // none before the first step
  return (
    <section class="panel">
      <h2>{t("runs.signal")}</h2>
      <div class="grid">
        <Chart title={t("runs.activation_rms")} xLabel={t("runs.layer")} yLabel="RMS" categories={categories} series={series("rms")} logY />
        {gradients.length > 0 && (
          <Chart title={t("runs.gradient_rms")} xLabel={t("runs.layer")} yLabel="RMS" categories={categories} series={gradients} logY />
        )}
      </div>
    </section>
  );
}

function Samples({ samples }: { samples: RunData["samples"] }) {
  const back = useSignal(0);
  const index = Math.min(back.value, samples.length - 1);
  const sample = samples[index]!;
  return (
    <section class="panel">
      <h2>{t("runs.samples")}</h2>
      <label class="field">
        {t("runs.at_step", { step: sample.step })}
        <input type="range" min={0} max={samples.length - 1} value={samples.length - 1 - index} disabled={samples.length < 2}
          onInput={(event) => (back.value = samples.length - 1 - event.currentTarget.valueAsNumber)} />
      </label>
      <p class="box sample"><span class="faint">{sample.prompt}</span>{sample.text}</p>
    </section>
  );
}
