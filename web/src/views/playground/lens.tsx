/** What each block adds to the prediction: the residual stream read through the final norm and the head. */
import { formatPercent } from "../../components/format";
import { t } from "../../i18n";
import { Bar } from "./alternatives";
import { visible, type LensRow, type Token } from "./types";

const SHOWN = 4;

export function Lens({ rows, chosen }: { rows: readonly LensRow[]; chosen: Token }) {
  return (
    <div class="scroll" role="region" tabIndex={0} aria-label={t("playground.lens")}>
      <table class="lens">
        <thead>
          <tr>
            <th scope="col">{t("playground.after")}</th>
            <th scope="col">{t("playground.chosen_share", { token: visible(chosen) })}</th>
            <th scope="col">{t("playground.added")}</th>
            <th scope="col">{t("playground.likeliest")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => {
            const added = i === 0 ? null : (row.chosen ?? 0) - (rows[i - 1]!.chosen ?? 0);
            return (
              <tr key={row.blocks}>
                <th scope="row">{row.blocks === 0 ? t("playground.embedding") : t("playground.block", { number: row.blocks })}</th>
                <td><Bar share={row.chosen ?? 0} /></td>
                <td class={`number ${added === null ? "" : added > 0 ? "good" : added < 0 ? "bad" : ""}`}>
                  {added === null ? "" : `${added > 0 ? "+" : added < 0 ? "−" : ""}${formatPercent(Math.abs(added))}`}
                </td>
                <td>
                  {row.top.slice(0, SHOWN).map((one) => (
                    <span key={one.id} class={`chip mono ${one.id === chosen.id ? "chosen" : ""}`}>
                      {visible(one)} <span class="faint">{formatPercent(one.probability)}</span>
                    </span>
                  ))}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
