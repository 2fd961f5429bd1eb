/** Each step of the norm on the chosen cell, next to torch's numbers. */
import type { ComponentChildren } from "preact";
import { cellName } from "../../components/cells";
import { formatNumber } from "../../components/format";
import { NumberInput } from "../../components/number-input";
import { t } from "../../i18n";
import type { Worked } from "./types";

export interface Edit {
  x: (value: number) => void;
  weight: (value: number) => void;
  bias: (value: number) => void;
}

const LIMIT = 1e6;

export function Steps({ worked, cell, edit }: { worked: Worked; cell: number; edit: Edit }) {
  const group = worked.groups[cell]!;
  const parameter = worked.parameters?.[cell];
  const isPadding = worked.mask !== null && !worked.mask[cell];
  const [x, normalized] = [worked.x[cell]!, worked.normalized[cell]!];
  const moment = worked.running ? worked.running[group]! : worked.moment[group]!;
  const [weight, bias] = parameter === undefined ? [undefined, undefined] : [worked.weight?.[parameter], worked.bias?.[parameter]];
  const divisor = `√(${formatNumber(moment)} + ${worked.eps.toExponential(0)})`;
  const centered = worked.mean ? `(${formatNumber(x)} − ${paren(worked.mean[group]!)})` : formatNumber(x);
  const affine = `${weight === undefined ? "" : `${formatNumber(weight)} × `}${paren(normalized)}${bias === undefined ? "" : ` + ${paren(bias)}`}`;
  const number = (value: number, label: string, onChange: (value: number) => void, disabled = false) => (
    <NumberInput key={`${label} ${cell}`} class="short" {...{ value, label, onChange, disabled, min: -LIMIT, max: LIMIT }} />
  );
  return (
    <div class="steps">
      <p class="mono cell-name">
        x[{cellName(cell, worked.shape, worked.axes)}]
        {isPadding && <span class="faint"> {t("scope.cell.padding")}</span>}
      </p>
      <table class="steps-table">
        <thead>
          <tr>
            <th scope="col">{t("scope.step")}</th>
            <th scope="col" class="number">
              normscope
            </th>
            <th scope="col" class="number">
              torch
            </th>
          </tr>
        </thead>
        <tbody>
          <Step name={t("scope.step.input")} sign="x">
            {number(x, t("scope.step.input"), edit.x, isPadding)}
          </Step>
          {worked.mean && (
            <Step
              name={t("scope.step.mean")}
              sign="μ"
              note={t("scope.step.of-values", { count: worked.counts[group]!, group: worked.group_names[group] || t("scope.all") })}
              torch={worked.torch.mean?.[group]}
            >
              {formatNumber(worked.mean[group])}
            </Step>
          )}
          <Step
            name={t(worked.centers ? "scope.step.variance" : "scope.step.square")}
            sign={worked.centers ? "σ²" : "mean x²"}
            note={
              worked.mean
                ? undefined
                : t("scope.step.of-values", { count: worked.counts[group]!, group: worked.group_names[group] || t("scope.all") })
            }
            torch={worked.torch.moment[group]}
          >
            {formatNumber(worked.moment[group])}
          </Step>
          {worked.running && (
            <Step
              name={t("scope.step.running")}
              sign="ψ²"
              note={t("scope.step.next", { value: formatNumber(worked.next_running![group]) })}
            >
              {formatNumber(worked.running[group])}
            </Step>
          )}
          <Step
            name={t("scope.step.normalized")}
            sign="x̂"
            note={isPadding ? undefined : `${centered} / ${divisor}`}
            torch={worked.torch.normalized[cell]}
          >
            {formatNumber(normalized)}
          </Step>
          {weight !== undefined && (
            <Step name={t("scope.step.weight")} sign="γ">
              {number(weight, t("scope.step.weight"), edit.weight)}
            </Step>
          )}
          {bias !== undefined && (
            <Step name={t("scope.step.bias")} sign="β">
              {number(bias, t("scope.step.bias"), edit.bias)}
            </Step>
          )}
          <Step
            name={t("scope.step.output")}
            sign="y"
            note={weight === undefined || isPadding ? undefined : affine}
            torch={worked.torch.result[cell]}
          >
            <strong>{formatNumber(worked.result[cell])}</strong>
          </Step>
        </tbody>
      </table>
      <dl class="codes">
        <dt>normscope</dt>
        <dd class="mono">{worked.layer}</dd>
        <dt>torch</dt>
        <dd class="mono">{worked.torch.code}</dd>
        <dt>{t("scope.difference")}</dt>
        <dd>
          <strong class={worked.torch.difference < 1e-9 ? "good" : "bad"}>{formatNumber(worked.torch.difference)}</strong>{" "}
          <span class="faint">{t(worked.torch.difference < 1e-9 ? "scope.difference.float64" : "scope.difference.mask")}</span>
        </dd>
      </dl>
    </div>
  );
}

const paren = (value: number) => (value < 0 ? `(${formatNumber(value)})` : formatNumber(value));

function Step(props: { name: string; sign: string; note?: string; torch?: number; children: ComponentChildren }) {
  return (
    <tr>
      <th scope="row">
        {props.name} <span class="mono sign">{props.sign}</span>
        {props.note && <span class="note mono">{props.note}</span>}
      </th>
      <td class="number">{props.children}</td>
      <td class="number faint">{props.torch === undefined ? "" : formatNumber(props.torch)}</td>
    </tr>
  );
}
