/** The same values as images and as text: what a token and a feature are in each, and what the chosen norm shares there. */
import { useComputed, useSignal, type ReadonlySignal } from "@preact/signals";
import { coordinates } from "../../components/cells";
import { ErrorBox } from "../../components/error-box";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { CellTables } from "./cell-tables";
import type { LayoutExample, NormName, SideBySide as Answer } from "./types";

export function SideBySide({ norm }: { norm: ReadonlySignal<NormName> }) {
  const result = useResult<Answer>(
    "scope/layouts",
    useComputed(() => ({ norm: norm.value })),
  );
  /** The index of the chosen value in the images. */
  const selected = useSignal(0);
  const hovered = useSignal<number | null>(null);
  const { data, error } = result.value;
  const at = hovered.value ?? selected.value;
  return (
    <section class="panel">
      <h2>{t("scope.side")}</h2>
      <p>{t("scope.side.intro")}</p>
      <ErrorBox error={error} />
      <div class="grid side">
        {data &&
          (["image", "text"] as const).map((name) => (
            <Side
              key={name}
              title={t(`scope.layout.${name}`)}
              example={data[name]}
              at={data[name].same.indexOf(at)}
              token={t(`scope.side.token.${name}`)}
              feature={t(`scope.side.feature.${name}`)}
              onSelect={(index) => (selected.value = data[name].same[index]!)}
              onHover={(index) => (hovered.value = index === null ? null : data[name].same[index]!)}
            />
          ))}
      </div>
      <p class="faint">
        {t("scope.side.code")} <code>{data?.code}</code>
      </p>
    </section>
  );
}

function Side(props: {
  title: string;
  example: LayoutExample;
  at: number;
  token: string;
  feature: string;
  onSelect: (index: number) => void;
  onHover: (index: number | null) => void;
}) {
  const { example, at } = props;
  const index = coordinates(at, example.shape);
  const feature = index[example.feature];
  const token = index.filter((_, axis) => axis !== example.feature).join(", ");
  return (
    <div>
      <h3>{props.title}</h3>
      <p class="mono">
        ({example.shape.join(", ")}) · {example.scope}
      </p>
      <CellTables
        {...{ shape: example.shape, axes: example.axes, values: example.values, groups: example.groups }}
        {...{ mask: null, lit: example.groups[at] ?? null, selected: at }}
        label={props.title}
        onSelect={props.onSelect}
        onHover={props.onHover}
      />
      <dl class="codes">
        <dt>{t("scope.side.token")}</dt>
        <dd>
          {props.token} <span class="mono">[{token}]</span>
        </dd>
        <dt>{t("scope.side.feature")}</dt>
        <dd>
          {props.feature} <span class="mono">[{feature}]</span>
        </dd>
        <dt>{t("scope.side.shared")}</dt>
        <dd>{t("scope.means", { means: example.group_count, count: example.count })}</dd>
      </dl>
    </div>
  );
}
