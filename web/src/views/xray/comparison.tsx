/** Two records compared: where they diverge first, and how far apart every module is. */
import { formatNumber } from "../../components/format";
import { ModuleName } from "../../components/module-name";
import { t } from "../../i18n";
import type { Distance, Divergence, XrayDiff } from "./types";

export function Comparison({ diff }: { diff: XrayDiff }) {
  return (
    <section class="panel comparison">
      <h2>{t("xray.compared", { before: diff.labels[0], after: diff.labels[1] })}</h2>
      <First title={t("xray.forward")} found={diff.forward} />
      <First title={t("xray.backward")} found={diff.backward} />
      {diff.remarks.map((remark, i) => (
        <p key={i} class="faint">
          {remark}
        </p>
      ))}
      <div class="scroll modules" tabIndex={0} role="region" aria-label={t("xray.distances")}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("xray.module")}</th>
              {(["output", "gradient", "weights"] as const).map((name) => (
                <th key={name} scope="col" class="number">
                  {t(`xray.${name}`)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {diff.modules.map((one, i) => (
              <tr key={i}>
                <th scope="row" class="mono">
                  <ModuleName name={one.name || one.kind} />
                  {one.only_in !== null && <span class="faint"> {t("xray.onlyIn", { label: diff.labels[one.only_in]! })}</span>}
                </th>
                {[one.output, one.gradient, one.weights].map((value, k) => (
                  <td key={k} class={`number ${far(value, diff.tolerance) ? "bad" : ""}`}>
                    {show(value)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function First({ title, found }: { title: string; found: Divergence | null }) {
  return (
    <p>
      <strong>{title}</strong> {found ? `${found.module || t("xray.model")}: ${found.why}` : t("xray.equal")}
    </p>
  );
}

const far = (value: Distance, tolerance: number) => value === "different" || (value !== null && value > tolerance);
const show = (value: Distance) => (value === "different" ? "≠" : formatNumber(value, 2));
