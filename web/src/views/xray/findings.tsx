/** What is wrong: the most severe first, each with its evidence and fix. */
import { CodeText } from "../../components/code-text";
import { formatNumber } from "../../components/format";
import { isNarrow } from "../../components/narrow";
import { t } from "../../i18n";
import type { Finding } from "./types";

export function Findings({ findings }: { findings: Finding[] }) {
  return (
    <section class="panel">
      <h2>{t("xray.findings", { count: findings.length })}</h2>
      {findings.length === 0 && <p class="good">{t("xray.healthy")}</p>}
      <ul class="findings">
        {findings.map((one, i) => (
          <li key={i} class={one.severity}>
            {/* On a phone only the first is open, so that the others and the signal are not far below. */}
            <details open={i === 0 || !isNarrow()}>
              <summary>
                <h3>
                  <span class="severity">{t(`xray.${one.severity}`)}</span> <CodeText text={one.title} />
                </h3>
              </summary>
              <p>
                <CodeText text={one.why} />
              </p>
              <dl>
                {Object.entries(one.evidence).map(([name, value]) => (
                  <div key={name}>
                    <dt>{name}</dt>
                    <dd>{typeof value === "number" ? formatNumber(value) : String(value)}</dd>
                  </div>
                ))}
              </dl>
              <pre class="box" tabIndex={0}>
                <CodeText text={one.fix} />
              </pre>
            </details>
          </li>
        ))}
      </ul>
    </section>
  );
}
