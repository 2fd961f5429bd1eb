/** The tokens that could have come at a position, with their probabilities. */
import { formatPercent } from "../../components/format";
import { t } from "../../i18n";
import { visible, type Alternative } from "./types";

/** Rows that are reserved, so that nothing moves. */
const ROWS = 9;

export function Alternatives({ chosen, alternatives }: { chosen: number; alternatives: readonly Alternative[] }) {
  return (
    <table class="alternatives" style={{ minHeight: `${ROWS * 30 + 30}px` }}>
      <thead>
        <tr>
          <th scope="col">{t("playground.token")}</th>
          <th scope="col">{t("playground.by_model")}</th>
          <th scope="col">{t("playground.after_settings")}</th>
        </tr>
      </thead>
      <tbody>
        {alternatives.map((one) => (
          <tr key={one.id} class={one.id === chosen ? "chosen" : one.sampled === 0 ? "excluded" : ""}>
            <th scope="row" class="mono">{visible(one)}{one.id === chosen && <span class="hidden"> {t("playground.chosen")}</span>}</th>
            <td><Bar share={one.probability} /></td>
            <td>{one.sampled === 0 ? <span class="faint">{t("playground.excluded")}</span> : <Bar share={one.sampled} />}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function Bar({ share }: { share: number }) {
  return (
    <span class="bar">
      <span class="track" aria-hidden="true"><span class="fill" style={{ width: `${100 * share}%` }} /></span>
      <span class="amount">{formatPercent(share)}</span>
    </span>
  );
}
