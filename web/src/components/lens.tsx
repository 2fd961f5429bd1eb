/** What each block adds to the prediction: the residual stream read through the final norm and the head. */
import "./model-parts.css";
import { t } from "../i18n";
import { NoPrediction } from "./alternatives";
import { Bar } from "./bar";
import { ErrorBox } from "./error-box";
import { formatPercent } from "./format";
import { visible, type Likely, type TextToken } from "./tokens";

/** What the model would predict if it ended after so many blocks. */
export interface LensRow {
  blocks: number;
  top: Likely[];
  /** The probability of the token that came. */
  chosen: number;
}

const SHOWN = 4;

interface Props {
  token: TextToken | undefined;
  /** Null if the token was not predicted; undefined while the rows are on their way. */
  rows: readonly LensRow[] | null | undefined;
  error?: unknown;
}

export function LensPanel({ token, rows, error }: Props) {
  return (
    <section class="panel lens">
      <h2>{t("model.lens")}</h2>
      <p class="faint">{t("model.lens.what")}</p>
      <ErrorBox error={error} />
      {!token || rows === null ? (
        <NoPrediction of={token} />
      ) : rows ? (
        <LensTable token={token} rows={rows} />
      ) : (
        !error && <p class="faint">{t("shell.loading")}</p>
      )}
    </section>
  );
}

function LensTable({ token, rows }: { token: TextToken; rows: readonly LensRow[] }) {
  return (
    <div class="scroll" role="region" tabIndex={0} aria-label={t("model.lens")}>
      <table>
        <thead>
          <tr>
            <th scope="col">{t("model.lens.after")}</th>
            <th scope="col">{t("model.lens.chosen", { token: visible(token) })}</th>
            <th scope="col" class="number">
              {t("model.lens.change")}
            </th>
            <th scope="col">{t("model.lens.top")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ blocks, chosen, top }, i) => (
            <tr key={blocks}>
              <th scope="row">{blocks === 0 ? t("model.embedding") : t("model.block.number", { number: blocks })}</th>
              <td>
                <Bar share={chosen} />
              </td>
              <Change by={i === 0 ? null : chosen - rows[i - 1]!.chosen} />
              <td>
                {top.slice(0, SHOWN).map((one) => (
                  <span key={one.id} class={`chip mono ${one.id === token.id ? "chosen" : ""}`}>
                    {visible(one)} <span class="faint">{formatPercent(one.probability)}</span>
                  </span>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Change({ by }: { by: number | null }) {
  const [kind, sign] = !by ? ["", ""] : by > 0 ? ["good", "+"] : ["bad", "−"];
  return <td class={`number ${kind}`}>{by === null ? "" : `${sign}${formatPercent(Math.abs(by))}`}</td>;
}
