/** The lab: claims about norms, initialization and residuals, their verdicts and figures; run one and watch. */
import "../../../../src/normscope/render/chart.css";
import "./lab.css";
import { useSignal } from "@preact/signals";
import { Choice } from "../../components/choice";
import { CodeText } from "../../components/code-text";
import { ErrorBox } from "../../components/error-box";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { ClaimPanel } from "./claim";
import type { ClaimSummary } from "./types";

const FILTERS = ["all", "supported", "contradicted", "inconclusive", "none"] as const;

export default function LabView() {
  const version = useSignal({});
  const claims = useResult<ClaimSummary[]>("lab", version);
  const filter = useSignal<(typeof FILTERS)[number]>("all");
  const opened = useSignal<string | null>(null);
  const shown = (claims.value.data ?? []).filter(
    (one) => filter.value === "all" || (one.status ?? "none") === filter.value,
  );
  return (
    <>
      <h1>{t("lab.title")}</h1>
      <p class="faint">{t("lab.intro")}</p>
      <ErrorBox error={claims.value.error} />
      <div class="lab">
        <div>
          <Choice
            label={t("lab.filter")}
            value={filter.value}
            options={FILTERS.map((value) => ({ value, label: t(`lab.${value}`) }))}
            onChange={(value) => (filter.value = value)}
          />
          <ul class="claims">
            {shown.map((one) => (
              <li key={one.name}>
                <button type="button" aria-current={opened.value === one.name ? "true" : undefined} onClick={() => (opened.value = one.name)}>
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
