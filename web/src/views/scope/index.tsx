/** The tab "Scope": a tensor, the cells that share one mean, and each step of the norm on them. */
import { useComputed, useSignal, type Signal } from "@preact/signals";
import { cellName } from "../../components/cells";
import { Choice } from "../../components/choice";
import { ErrorBox } from "../../components/error-box";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { CellTables } from "./cell-tables";
import { Controls, settingsFor } from "./controls";
import { Cube } from "./cube";
import { Padding } from "./padding";
import { scopeError } from "./scope-input";
import { SideBySide } from "./side-by-side";
import { Steps } from "./steps";
import type { NormName, Offer, Settings, Worked } from "./types";
import "./scope.css";

export default function ScopeView() {
  const offer = useResult<Offer>("scope/norms", useSignal({})).value;
  return (
    <>
      <h1>{t("scope.title")}</h1>
      <p class="faint">{t("scope.intro")}</p>
      <ErrorBox error={offer.error} />
      {offer.data ? <Workbench offer={offer.data} /> : <p class="loading">{t("shell.loading")}</p>}
    </>
  );
}

function Workbench({ offer }: { offer: Offer }) {
  const settings = useSignal<Settings>(settingsFor(offer, "image", "batch"));
  const result = useResult<Worked>("scope/work", settings, 60).value;
  /** A typed scope has no counterpart in the other layout: the last named norm stays in the comparison. */
  const lastNorm = useSignal<NormName>("batch");
  const named = useComputed(() => (lastNorm.value = settings.value.norm ?? lastNorm.peek()));
  return (
    <div class="scope-view">
      <Controls {...{ offer, settings }} worked={result.data} error={result.error} />
      {!scopeError(result.error) && <ErrorBox error={result.error} />}
      {result.data ? (
        <>
          <Tensor offer={offer} worked={result.data} settings={settings} stale={result.error !== null} />
          <SideBySide norm={named} />
        </>
      ) : (
        <p class="loading">{t("shell.loading")}</p>
      )}
    </div>
  );
}

type Quantity = "x" | "normalized" | "result" | "torch";

interface TensorProps {
  offer: Offer;
  worked: Worked;
  settings: Signal<Settings>;
  /** The newest settings have an error: these numbers are older. */
  stale: boolean;
}

function Tensor({ offer, worked, settings, stale }: TensorProps) {
  const chosen = useSignal(0);
  const hovered = useSignal<number | null>(null);
  const quantity = useSignal<Quantity>("x");
  const last = worked.x.length - 1;
  const selected = Math.min(chosen.value, last);
  const at = hovered.value === null || hovered.value > last ? selected : hovered.value;
  const lit = worked.groups[at]!;
  const values = quantity.value === "torch" ? worked.torch.result : worked[quantity.value];
  const onSelect = (index: number) => (chosen.value = index);
  const onHover = (index: number | null) => (hovered.value = index);
  const change = (field: "edits" | "weight" | "bias", index: number) => (value: number) =>
    (settings.value = { ...settings.peek(), [field]: { ...settings.peek()[field], [index]: value } });
  const parameter = worked.parameters?.[selected] ?? 0;
  const { shape, axes, groups, mask } = worked;
  const counted = t("scope.means", { means: worked.group_names.length, count: worked.count });
  const title = offer.norms.find(({ name }) => name === settings.value.norm)?.title;
  const same = worked.same_as.filter((name) => name !== title);
  return (
    <div class={stale ? "tensor stale" : "tensor"}>
      <div class="grid">
        <section class="panel">
          <h2>{t("scope.tensor")}</h2>
          <p class="counted">
            <span class="mono">{worked.reads.join(" ")}</span> · {counted}
            {stale && <strong> · {t("scope.stale", { scope: worked.scope })}</strong>}
            {!stale && same.length > 0 && ` · ${t("scope.same-as", { names: same.join(", ") })}`}
          </p>
          <Cube
            cells={{ shape, axes, groups, mask, lit, selected }}
            description={t("scope.cube.alt", {
              cell: cellName(at, shape, axes),
              count: groups.filter((group) => group === lit).length,
              all: groups.length,
            })}
            onHover={onHover}
            onSelect={onSelect}
          />
        </section>
        <section class="panel">
          <h2>{t("scope.steps")}</h2>
          <Steps
            worked={worked}
            cell={selected}
            edit={{ x: change("edits", selected), weight: change("weight", parameter), bias: change("bias", parameter) }}
          />
        </section>
      </div>
      <section class="panel">
        <div class="row between">
          <h2>{t("scope.cells")}</h2>
          <div class="row">
            <Choice
              label={t("scope.show")}
              value={quantity.value}
              options={(["x", "normalized", "result", "torch"] as const).map((value) => ({
                value,
                label: t(`scope.show.${value}`),
              }))}
              onChange={(value) => (quantity.value = value)}
            />
            <button type="button" onClick={() => (settings.value = { ...settings.peek(), edits: {}, weight: {}, bias: {} })}>
              {t("scope.reset")}
            </button>
          </div>
        </div>
        <p class="faint">{t("scope.cells.keys")}</p>
        <CellTables {...{ shape, axes, values, groups, mask, lit, selected, onSelect, onHover }} label={t("scope.cells")} />
      </section>
      {worked.padding && <Padding worked={worked} masked={settings.value.masked} />}
    </div>
  );
}
