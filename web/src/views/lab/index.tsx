/** The lab: claims about norms, initialization and residuals, their verdicts and figures; run one and watch. */
import "../../../../src/normscope/render/chart.css";
import "./lab.css";
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { addressed, addressOf } from "../../address";
import { Choice } from "../../components/choice";
import { CodeText } from "../../components/code-text";
import { ErrorBox } from "../../components/error-box";
import { isNarrow } from "../../components/narrow";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { ClaimPanel } from "./claim";
import type { ClaimSummary } from "./types";

const FILTERS = ["all", "supported", "contradicted", "inconclusive", "none"] as const;

export default function LabView() {
  const version = useSignal({});
  const claims = useResult<ClaimSummary[]>("lab", version);
  const filter = useSignal<(typeof FILTERS)[number]>("all");
  const opened = useSignal(addressed());
  const list = useRef<HTMLUListElement>(null);
  const shown = (claims.value.data ?? []).filter(
    (one) => filter.value === "all" || (one.status ?? "none") === filter.value,
  );
  useEffect(() => {
    const change = () => {
      const before = opened.value;
      opened.value = addressed();
      if (before && !opened.value) requestAnimationFrame(() => returnTo(list.current, before));
    };
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return (
    <>
      <h1>{t("lab.title")}</h1>
      <p class="faint">{t("lab.intro")}</p>
      <ErrorBox error={claims.value.error} />
      <div class={opened.value ? "lab open" : "lab"}>
        <div class="list">
          <Choice
            label={t("lab.filter")}
            value={filter.value}
            options={FILTERS.map((value) => ({ value, label: t(`lab.${value}`) }))}
            onChange={(value) => (filter.value = value)}
          />
          {claims.value.data === null && !claims.value.error && <p class="faint">{t("shell.loading")}</p>}
          <ul class="claims" ref={list}>
            {shown.map((one) => (
              <li key={one.name}>
                <button
                  type="button"
                  data-claim={one.name}
                  aria-current={opened.value === one.name ? "true" : undefined}
                  onClick={() => (location.hash = addressOf("lab", one.name))}
                >
                  <span class="number">{one.number}</span>
                  <span>
                    <CodeText text={one.statement} />
                    <small class={`verdict ${one.status ?? ""}`}>{one.verdict ?? t("lab.none")}</small>
                  </span>
                </button>
              </li>
            ))}
          </ul>
        </div>
        {opened.value ? (
          <ClaimPanel key={opened.value} name={opened.value} onChange={() => (version.value = {})} />
        ) : (
          <p class="panel faint">{t("lab.choose")}</p>
        )}
      </div>
    </>
  );
}

/** Back from a claim to the list, where a narrow window hides it meanwhile. */
function returnTo(list: Element | null, claim: string): void {
  const button = list?.querySelector<HTMLElement>(`[data-claim="${claim}"]`);
  if (!button || !isNarrow()) return;
  button.scrollIntoView({ block: "center" });
  button.focus({ preventScroll: true });
}
