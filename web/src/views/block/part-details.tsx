/** A part of the block: formula, settings, parameters, its input and output for the chosen token, and its code. */
import { formatNumber } from "../../components/format";
import { t } from "../../i18n";
import type { Part, Vector } from "./types";

export function PartDetails({ part }: { part: Part }) {
  return (
    <>
      <h2 class="part-name">
        {part.name || t("block.whole")} <span class="faint">{part.kind}</span>
      </h2>
      {part.formula && <pre class="formula">{part.formula.replace(/ {3,}/g, "\n")}</pre>}
      {part.details && <p class="mono faint">{part.details}</p>}
      {Object.keys(part.parameters).length > 0 && (
        <p>
          {Object.entries(part.parameters).map(([name, shape]) => (
            <code key={name} class="chip">
              {name} {shape.join(" × ")}
            </code>
          ))}
        </p>
      )}
      <VectorStrip title={t("block.input")} vector={part.input} />
      <VectorStrip title={t("block.output")} vector={part.output} />
      {part.code && (
        <details>
          <summary>{t("block.code")}</summary>
          <pre class="box" tabIndex={0}>
            {part.code}
          </pre>
        </details>
      )}
    </>
  );
}

/** The values of a vector as bars around zero, with its mean and RMS. */
function VectorStrip({ title, vector }: { title: string; vector: Vector | null }) {
  if (!vector) return null;
  const largest = Math.max(1e-12, ...vector.values.map(Math.abs));
  return (
    <figure class="vector">
      <figcaption>
        {title} <span class="faint">{t("block.stats", { size: vector.size, mean: formatNumber(vector.mean, 3), rms: formatNumber(vector.rms, 3) })}</span>
      </figcaption>
      <svg viewBox={`0 0 ${vector.values.length} 40`} preserveAspectRatio="none" role="img" aria-label={label(vector)}>
        <line x1="0" x2={vector.values.length} y1="20" y2="20" />
        {vector.values.map((value, i) => {
          const height = (18 * Math.abs(value)) / largest;
          return <rect key={i} class={value < 0 ? "low" : "high"} x={i + 0.1} width="0.8" y={value < 0 ? 20 : 20 - height} height={height} />;
        })}
      </svg>
      <p class="mono faint first">{vector.values.slice(0, 8).map((value) => formatNumber(value, 3)).join("  ")} …</p>
    </figure>
  );
}

const label = (vector: Vector) => t("block.range", { low: formatNumber(vector.min, 3), high: formatNumber(vector.max, 3) });
