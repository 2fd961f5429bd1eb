/** What padding does to the statistics: those of the real values, next to those with the padding counted. */
import { formatNumber } from "../../components/format";
import { t } from "../../i18n";
import type { Worked } from "./types";

const MOST = 12;

export function Padding({ worked, masked }: { worked: Worked; masked: boolean }) {
  const effect = worked.padding!;
  const groups = effect.has_real.flatMap((real, group) => (real ? [group] : []));
  const wrong = groups.filter((group) => effect.wrong[group]);
  // The wrong ones first: with many groups, only some are shown.
  const shown = [...wrong, ...groups.filter((group) => !effect.wrong[group])].slice(0, MOST).sort((a, b) => a - b);
  const second = t(worked.centers ? "scope.step.variance" : "scope.step.square");
  return (
    <section class="panel">
      <h2>{t("scope.padding.title")}</h2>
      <p>
        {wrong.length
          ? t("scope.padding.wrong", { wrong: wrong.length, count: groups.length })
          : t("scope.padding.right", { count: groups.length })}{" "}
        {wrong.length > 0 && (
          <strong class={masked ? "good" : "bad"}>{t(masked ? "scope.padding.masked" : "scope.padding.unmasked")}</strong>
        )}
      </p>
      <div class="scroll" role="region" aria-label={t("scope.padding.title")} tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("scope.group")}</th>
              {worked.centers && <th scope="col">{t("scope.padding.mean", { which: t("scope.padding.real") })}</th>}
              {worked.centers && <th scope="col">{t("scope.padding.mean", { which: t("scope.padding.counted") })}</th>}
              <th scope="col">
                {second}: {t("scope.padding.real")}
              </th>
              <th scope="col">
                {second}: {t("scope.padding.counted")}
              </th>
              <th scope="col">{t("scope.padding.used")}</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((group) => {
              const used = !effect.wrong[group] || masked;
              return (
                <tr key={group}>
                  <th scope="row" class="mono">
                    {worked.group_names[group] || t("scope.all")}
                  </th>
                  {worked.centers && <td class="number">{formatNumber(effect.real.mean![group])}</td>}
                  {worked.centers && (
                    <td class={effect.wrong[group] ? "number bad" : "number"}>{formatNumber(effect.padded.mean![group])}</td>
                  )}
                  <td class="number">{formatNumber(effect.real.moment[group])}</td>
                  <td class={effect.wrong[group] ? "number bad" : "number"}>{formatNumber(effect.padded.moment[group])}</td>
                  <td class={used ? "good" : "bad"}>{used ? `✓ ${t("scope.padding.real")}` : `✗ ${t("scope.padding.counted")}`}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {groups.length > shown.length && <p class="faint">{t("scope.padding.more", { count: groups.length - shown.length })}</p>}
    </section>
  );
}
