/** The residual stream read through the head after each block: what the model would predict if it ended there. */
import "./model-parts.css";
import { t } from "../i18n";
import { formatProbability, visible } from "./token-label";

export interface LensRow {
  label: string;
  /** The probability of the token that came. */
  probability: number;
  top: { label: string; probability: number }[];
}

export function LensTable({ rows, target }: { rows: LensRow[]; target: string }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={t("model.lens.title")}>
      <table class="bars lens">
        <thead>
          <tr>
            <th scope="col">{t("model.lens.after")}</th>
            <th scope="colgroup" colSpan={2}>
              {t("model.lens.target", { token: visible(target) })}
            </th>
            <th scope="col">{t("model.lens.top")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.label}>
              <th scope="row">{row.label}</th>
              <td class="number">{formatProbability(row.probability)}</td>
              <td class="bar">
                <span style={{ "--p": row.probability }} />
              </td>
              <td>
                <div class="chips">
                  {row.top.map((one, i) => (
                    <span key={i} class="chip" style={{ "--p": one.probability }}>
                      <span class="mono">{visible(one.label)}</span> {formatProbability(one.probability)}
                    </span>
                  ))}
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
