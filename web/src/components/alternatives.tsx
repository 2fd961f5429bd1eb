/** The tokens that could have come in place of one, with their probabilities. */
import "./model-parts.css";
import { t } from "../i18n";
import { Bar } from "./bar";
import { visible, type TextToken } from "./tokens";

export function AlternativesPanel({ token }: { token: TextToken | undefined }) {
  return (
    <section class="panel alternatives">
      <h2>{token ? t("model.alternatives.of", { token: visible(token) }) : t("model.alternatives")}</h2>
      {token?.alternatives?.length ? <Alternatives {...token} /> : <NoPrediction of={token} />}
    </section>
  );
}

function Alternatives({ id, alternatives }: TextToken) {
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">{t("model.alternatives.token")}</th>
          <th scope="col">{t("model.alternatives.model")}</th>
          <th scope="col">{t("model.alternatives.settings")}</th>
        </tr>
      </thead>
      <tbody>
        {alternatives!.map((one) => (
          <tr key={one.id} class={one.id === id ? "chosen" : undefined}>
            <th scope="row" class="mono">
              {visible(one)}
              {one.id === id && <span class="hidden"> {t("model.alternatives.chosen")}</span>}
            </th>
            <td>
              <Bar share={one.probability} />
            </td>
            <td>{one.sampled === 0 ? <span class="faint">{t("model.alternatives.excluded")}</span> : <Bar share={one.sampled} />}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Why there is nothing to see: no token is chosen, or the model did not predict it. */
export function NoPrediction({ of }: { of: TextToken | undefined }) {
  return <p class="faint">{t(of ? "model.not_predicted" : "model.waiting")}</p>;
}
