/** The RMS of each module's output and of its gradient, on a logarithmic scale. */
import { Bar } from "../../components/bar";
import { formatNumber } from "../../components/format";
import { ModuleName } from "../../components/module-name";
import { t } from "../../i18n";
import type { ModuleSignal } from "./types";

export function Signal({ modules }: { modules: ModuleSignal[] }) {
  const values = modules.flatMap((one) => [one.rms, one.gradient_rms]).filter((value): value is number => !!value);
  const low = Math.floor(Math.log10(Math.min(1, ...values)));
  const high = Math.ceil(Math.log10(Math.max(1, ...values)));
  const share = (value: number | null) => (value ? (Math.log10(value) - low) / Math.max(1, high - low) : 0);
  return (
    <section class="panel">
      <h2>{t("xray.signal")}</h2>
      <p class="faint">{t("xray.scale", { low: `1e${low}`, high: `1e${high}` })}</p>
      <div class="scroll modules" tabIndex={0} role="region" aria-label={t("xray.signal")}>
        <table>
          <thead>
            <tr>
              <th scope="col">{t("xray.module")}</th>
              <th scope="col">{t("xray.output")}</th>
              <th scope="col">{t("xray.gradient")}</th>
            </tr>
          </thead>
          <tbody>
            {modules.map((one, i) => (
              <tr key={i}>
                <th scope="row" class="mono" title={one.kind}>
                  <ModuleName name={one.name || one.kind} />
                </th>
                {[one.rms, one.gradient_rms].map((value, k) => (
                  <td key={k}>
                    <Bar share={share(value)} text={formatNumber(value, 3)} color={k ? "--series-b" : "--series-a"} />
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
