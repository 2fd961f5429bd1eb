/** The lab: claims about norms, initialization and residuals, their verdicts and figures; run one and watch. */
import "../../../../src/normscope/render/chart.css";
import "./lab.css";
import { useSignal } from "@preact/signals";
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
          <div class="row filters" role="group" aria-label={t("lab.filter")}>
            {FILTERS.map((name) => (
              <button key={name} type="button" aria-pressed={filter.value === name} onClick={() => (filter.value = name)}>
                {t(`lab.${name}`)}
              </button>
            ))}
          </div>
          <ul class="claims">
            {shown.map((one) => (
              <li key={one.name}>
                <button type="button" aria-pressed={opened.value === one.name} onClick={() => (opened.value = one.name)}>
                  <span class="number">{one.number}</span>
                  <span>
                    {one.statement}
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
