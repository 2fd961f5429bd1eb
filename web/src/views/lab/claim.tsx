/** One claim: statement, rule, verdict, figures; and the run of it. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { call, follow } from "../../api";
import { CodeText } from "../../components/code-text";
import { ErrorBox } from "../../components/error-box";
import { bringIntoView } from "../../components/narrow";
import { useAction } from "../../components/use-action";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import type { Claim, JobProgress } from "./types";

export function ClaimPanel({ name, onChange }: { name: string; onChange: () => void }) {
  const request = useSignal({ name });
  const claim = useResult<Claim>("lab/claim", request);
  const job = useSignal<JobProgress | null>(null);
  const error = useSignal<unknown>(null);
  const action = useAction();
  const watching = useSignal(0);
  const { data } = claim.value;
  const panel = useRef<HTMLElement>(null);

  useEffect(() => bringIntoView(panel.current), []);
  useEffect(() => {
    if (!watching.value && !data?.running) return undefined;
    const abort = new AbortController();
    follow<JobProgress>("lab/follow", () => ({ name }), (now) => (job.value = now), abort.signal)
      .then(() => {
        request.value = { name };
        onChange();
      })
      .catch((problem: unknown) => {
        if (!abort.signal.aborted) error.value = problem;
      });
    return () => abort.abort();
  }, [watching.value, data?.running]);

  const act = (endpoint: string) =>
    action.run(async () => {
      await call(endpoint, { name });
      error.value = null;
      if (endpoint === "lab/run") watching.value++;
    });
  const running = job.value?.status === "running";
  return (
    <article class="panel sticky claim" ref={panel}>
      <a class="back" href="#lab">
        ← {t("lab.back")}
      </a>
      <ErrorBox error={claim.value.error ?? error.value ?? action.error} retry={action.retry} />
      {data && (
        <>
          <h2>
            <CodeText text={data.statement} />
          </h2>
          <p>
            <span class={`verdict ${data.status ?? ""}`}>{data.verdict ?? t("lab.none")}</span>{" "}
            {data.outdated && <span class="faint">{t("lab.outdated")}</span>}
          </p>
          <div class="row">
            <button type="button" class="primary" disabled={running} onClick={() => void act("lab/run")}>
              {t("lab.run")}
            </button>
            <button type="button" disabled={!running} onClick={() => void act("lab/stop")}>
              {t("lab.stop")}
            </button>
          </div>
          {job.value && (
            <pre class="box" tabIndex={0} role="log" aria-label={t("lab.output")}>
              {lastLines(job.value.output)}
            </pre>
          )}
          {data.paragraphs.map((text, i) => (
            <p key={i}>
              <CodeText text={text} />
            </p>
          ))}
          {data.charts.map((chart, i) => (
            // A chart is made by normscope's renderer, which escapes every label.
            <div key={i} class="claim-chart" dangerouslySetInnerHTML={{ __html: chart }} />
          ))}
          {data.answers.length > 0 && (
            <ul class="answers" aria-label={t("lab.answers")}>
              {data.answers.map((one, i) => (
                <li key={i}>
                  <span class="question">
                    <CodeText text={one.question} />
                  </span>
                  <span class="number">{one.interval}</span>
                  <span class={`verdict ${one.verdict}`}>{one.verdict}</span>
                </li>
              ))}
            </ul>
          )}
          <dl class="texts">
            {(["design", "rule", "source"] as const).map((part) => (
              <div key={part}>
                <dt>{t(`lab.${part}`)}</dt>
                <dd>
                  <CodeText text={data[part]} />
                </dd>
              </div>
            ))}
          </dl>
          <p class="faint">{data.facts}</p>
        </>
      )}
    </article>
  );
}

const lastLines = (output: string) => output.trimEnd().split("\n").slice(-12).join("\n");
